"""Runs a test body in two processes that form a `torch.distributed` world on CPU."""

import gc
import warnings

import torch.distributed as dist
import torch.multiprocessing as mp


def _start(rank, worker, store, size):
    warnings.simplefilter("error", FutureWarning)  # of torch, about what we call
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    try:
        worker(rank)
        dist.barrier()  # whoever leaves first aborts the last collective of the others
    finally:
        gc.collect()  # cycles that hold the group keep its threads, which abort an interpreter that ends
        dist.destroy_process_group()


def run_distributed(worker, tmp_path, size=2):
    """Call `worker(rank)`, a module-level function, in `size` processes; its failure is ours."""
    mp.spawn(_start, args=(worker, tmp_path / "store", size), nprocs=size)
