"""A report of a certified network: one self-contained HTML file."""

from orthogonium.report.choice import Sample, Samples, choose_samples
from orthogonium.report.curves import default_radii
from orthogonium.report.evaluation import Evaluation, evaluate
from orthogonium.report.spectra import LayerSpectrum, layer_spectra
from orthogonium.report.write import write_report

__all__ = [
    "Evaluation",
    "LayerSpectrum",
    "Sample",
    "Samples",
    "choose_samples",
    "default_radii",
    "evaluate",
    "layer_spectra",
    "write_report",
]
