"""Models for `torch.hub`: `torch.hub.load("deel-ai/orthogonium", "aocnet_tiny", image_shape=(3, 32, 32))`.

Every name of `list_models()` is one here, with the arguments of `create_model`; those of `list_models(pretrained=True)`
have trained weights.
"""

from functools import partial as _partial

from orthogonium.models import create_model as _create_model
from orthogonium.models import describe_model as _describe_model
from orthogonium.models import describe_pretrained as _describe_pretrained
from orthogonium.models import list_models as _list_models

dependencies = ["torch", "numpy"]


for _name in _list_models():
    globals()[_name] = _entry = _partial(_create_model, _name)
    _entry.__doc__ = _describe_model(_name).summary
for _name in _list_models(pretrained=True):
    globals()[_name] = _entry = _partial(_create_model, _name, pretrained=True)
    _entry.__doc__ = f"{_describe_pretrained(_name).model} with weights trained on {_describe_pretrained(_name).data}."
