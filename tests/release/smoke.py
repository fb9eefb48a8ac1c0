"""What must work where only a wheel or an sdist is installed: `python smoke.py CLONE`, outside of the clone."""

import sys
from importlib.metadata import distribution
from pathlib import Path

import torch

import orthogonium
from orthogonium.data import load_dataset, unit_pixels
from orthogonium.models import create_model, describe_pretrained, list_models


def main(clone: str) -> None:
    package = Path(orthogonium.__file__).parent
    assert package.is_relative_to(sys.prefix), f"{package} is not what was installed"
    assert (package / "py.typed").is_file() and distribution("orthogonium").version == orthogonium.__version__
    assert any(path.name == "LICENSE" for path in distribution("orthogonium").files or ())

    test = load_dataset("digits").test
    images, labels = unit_pixels(test.pixels)[:100], test.labels[:100]
    model = create_model("aocnet_tiny_digits", pretrained=True)
    certificates = orthogonium.certify(model, [(images, labels)], eps=[0.25])
    assert certificates.accuracy > 0.9 and certificates.certified_accuracy[0] > 0.8
    for name in list_models(pretrained=True):
        orthogonium.lipschitz_bound(create_model(name, pretrained=True), describe_pretrained(name).image_shape)

    plain = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 10))
    assert orthogonium.convert(plain, (1, 8, 8)).bound < 1.0001

    same = orthogonium.load(orthogonium.save(model, "network"))
    by_hub = torch.hub.load(clone, "aocnet_tiny_digits", source="local")
    with torch.no_grad():
        assert torch.equal(same(images), model(images)) and torch.equal(by_hub(images), model(images))
    print(
        f"{package}, {orthogonium.__version__}: trained weights, certificates, conversion, folders and torch.hub work"
    )


if __name__ == "__main__":
    main(sys.argv[1])
