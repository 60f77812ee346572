"""What MESH= and DEVICES= may say."""

import pytest

from t5xpg.base.errors import UserError
from t5xpg.check.plan import mesh_choice
from t5xpg.distributed import MeshConfig
from t5xpg.experiment import config
from tests.experiment.test_config import write_gin


def test_sizes_and_fragments_are_spelled(tmp_path) -> None:
    bindings, _ = mesh_choice.mesh_overrides("data=8, model=4")
    mesh = config.load(write_gin(tmp_path, partitioning="tensor_parallel"), bindings).experiment.mesh
    assert (mesh.data, mesh.model, mesh.devices) == (8, 4, None)
    only = config.load(write_gin(tmp_path, partitioning="tensor_parallel"), mesh_choice.mesh_overrides("data=8")[0])
    assert (only.experiment.mesh.data, only.experiment.mesh.model) == (8, 1)

    for name in ("tensor_parallel", "gin/partitioning/tensor_parallel.gin"):
        assert config.load(write_gin(tmp_path), *mesh_choice.mesh_overrides(name)).experiment.mesh.model == 2


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("tensor_paralel", r"no file of gin/partitioning. Did you mean tensor_parallel"),
        ("dat=8", r"no axis 'dat'. Did you mean data\?"),
        ("data=eight", r"cannot read 'data=eight'; expected axis=size"),
        ("data=8;model=2", r"cannot read 'data=8;model=2'"),
        ("data=8,data=2", r"says the size of 'data' twice"),
    ],
)
def test_mistakes(typed, message) -> None:
    with pytest.raises(UserError, match=message):
        mesh_choice.mesh_overrides(typed)


@pytest.mark.parametrize(
    ("mesh", "asked", "count"),
    [
        (MeshConfig(data=-1, model=2), 8, 8),
        (MeshConfig(data=-1, model=2), None, 2),
        (MeshConfig(data=4, model=2), None, 8),
        (MeshConfig(data=-1, model=2, devices=6), None, 6),
    ],
)
def test_how_many_devices(mesh, asked, count) -> None:
    assert mesh_choice.device_count(mesh, asked) == count


@pytest.mark.parametrize(
    ("mesh", "asked", "message"),
    [
        (MeshConfig(data=4, model=2), 16, "DEVICES=16, and the mesh has 8"),
        (MeshConfig(data=-1, model=4), 6, "DEVICES=6 does not divide by the 4"),
    ],
)
def test_numbers_that_do_not_fit(mesh, asked, message) -> None:
    with pytest.raises(UserError, match=message):
        mesh_choice.device_count(mesh, asked)
