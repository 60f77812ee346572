"""What MESH= and DEVICES= may say."""

from t5xpg.check.plan import mesh_choice
from t5xpg.distributed import MeshConfig
from t5xpg.experiment import config
from tests.experiment.test_config import write_gin
from tests.refusals import refused


def test_sizes_and_fragments_are_spelled(tmp_path) -> None:
    for typed, expected in (("data=8, model=4", (8, 4, None)), ("data=8", (8, 1, None))):
        bindings, _ = mesh_choice.mesh_overrides(typed)
        mesh = config.load(write_gin(tmp_path, partitioning="tensor_parallel"), bindings).experiment.mesh
        assert (mesh.data, mesh.model, mesh.devices) == expected
    for name in ("tensor_parallel", "gin/partitioning/tensor_parallel.gin"):
        assert config.load(write_gin(tmp_path), *mesh_choice.mesh_overrides(name)).experiment.mesh.model == 2
    for typed, named in (
        ("tensor_paralel", "Did you mean tensor_parallel"),
        ("dat=8", "Did you mean data"),
        ("data=eight", "'data=eight'"),
        ("data=8;model=2", "'data=8;model=2'"),
        ("data=8,data=2", "'data' twice"),
    ):
        with refused(named):
            mesh_choice.mesh_overrides(typed)


def test_how_many_devices() -> None:
    for mesh, asked, count in (
        (MeshConfig(data=-1, model=2), 8, 8),
        (MeshConfig(data=-1, model=2), None, 2),
        (MeshConfig(data=4, model=2), None, 8),
        (MeshConfig(data=-1, model=2, devices=6), None, 6),
    ):
        assert mesh_choice.device_count(mesh, asked) == count
    for mesh, asked, *named in (
        (MeshConfig(data=4, model=2), 16, "DEVICES=16", "8"),
        (MeshConfig(data=-1, model=4), 6, "DEVICES=6", "4"),
    ):
        with refused(*named):
            mesh_choice.device_count(mesh, asked)
