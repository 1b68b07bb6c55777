"""Versions are found without importing torch."""

from importlib import metadata
from pathlib import Path

import pytest

from opatlas.row import versions


@pytest.fixture
def packages(monkeypatch):
    """Installed packages, by name; the test fills it in."""
    installed = {}

    def version(name):
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    return installed


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_versions_come_from_package_metadata(packages):
    packages.update({"vllm-ascend": "0.18.0", "torch": "2.9.0+cpu"})
    found = versions.detect(versions.Versions(cann="8.5"))
    assert (found.vllm, found.torch, found.cann) == ("0.18.0", "2.9.0+cpu", "8.5")


def test_torch_npu_knows_its_torch(packages):
    packages["torch_npu"] = "2.9.0.post1"
    assert versions.detect().torch == "2.9.0"


@pytest.mark.parametrize("variable", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"])
def test_cann_from_the_toolkit_that_the_environment_names(tmp_path, variable):
    write(
        tmp_path / "home/aarch64-linux/ascend_toolkit_install.info", "package_name=toolkit\nversion=8.5.0\nos=linux\n"
    )
    write(tmp_path / "usual/ascend-toolkit/latest/ascend_toolkit_install.info", "version=8.2.RC1\n")
    assert versions.cann_version({variable: str(tmp_path / "home")}, tmp_path / "usual") == "8.5.0"


#: What installers leave: the files of the toolkit's folder, as published packages have them.
TOOLKITS = {
    "8.0, components numbered on their own": (
        "8.0.0",
        {
            "ascend-toolkit/latest/compiler/version.info": "Version=7.6.0.1.220\nversion_dir=8.0.0\n",
            "ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info": "version=8.0.0\narch=aarch64\n",
        },
    ),
    "8.2, components alone": (
        "8.2.RC1",
        {"ascend-toolkit/latest/runtime/version.info": "Version=8.2.0.0.201\nversion_dir=8.2.RC1\n"},
    ),
    "8.3": (
        "8.3.RC1",
        {
            "ascend-toolkit/latest/compiler/version.info": "Version=8.3.0.1.200\n",
            "ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info": (
                "package_name=Ascend-cann-toolkit\nversion=8.3.RC1\ninnerversion=V100R001C23SPC001B235\n"
                "arch=aarch64\nos=linux\npath=/usr/local/Ascend/ascend-toolkit/8.3.RC1/aarch64-linux\n"
            ),
        },
    ),
    "8.3, below another package": (
        "8.3.RC1",
        {
            "ascend-toolkit/latest/ascend_kernels_install.info": "version=8.3.RC2\n",
            "ascend-toolkit/latest/x86_64-linux/ascend_toolkit_install.info": "version=8.3.RC1\n",
        },
    ),
    "8.5, whose component says more in its first file than in its second": (
        "8.5.0",
        {
            "cann/compiler/version.info": "Version=8.5.0.2.220\n",
            "cann/runtime/version.info": "Version=8.5.0.2.220\nversion_dir=cann-8.5.0\n",
        },
    ),
    "9.0, components alone": (
        "9.0.0-beta.2",
        {"cann/share/info/runtime/version.info": "Version=9.0.0.1.100\nversion_dir=cann-9.0.0-beta.2\n"},
    ),
    "no more than a toolkit's version.info": ("8.3.RC1", {"ascend-toolkit/latest/version.info": "Version=8.3.RC1\n"}),
}


@pytest.mark.parametrize(("version", "files"), TOOLKITS.values(), ids=TOOLKITS)
def test_cann_as_its_installers_leave_it(tmp_path, version, files):
    for name, text in files.items():
        write(tmp_path / name, text)
    assert versions.cann_version({}, tmp_path) == version
    # As CANN's set_env.sh names it.
    home = tmp_path / ("cann" if (tmp_path / "cann").exists() else "ascend-toolkit/latest")
    assert versions.cann_version({"ASCEND_HOME_PATH": str(home)}, tmp_path / "nowhere") == version


@pytest.mark.parametrize("version", ["8.3", "8.3.0", "8.3.RC1", "8.3.RC2", "8.3.0.1.200"])
def test_versions_of_one_release(version):
    assert versions.same_release(version, "8.3.RC1")


@pytest.mark.parametrize(("one", "other"), [("8.3", "8.5"), ("8.0", "10.0"), ("9.0", "8.9"), ("2.1", "2.10")])
def test_versions_of_two_releases(one, other):
    assert not versions.same_release(one, other)


def test_the_drivers_version_is_not_canns(tmp_path):
    write(tmp_path / "driver/version.info", "Version=25.2.0\n")
    assert versions.cann_version({}, tmp_path) is None


@pytest.mark.parametrize(
    ("line", "cuda"), [("cuda: Optional[str] = '12.8'", "12.8"), ("cuda: Optional[str] = None", None), ("", None)]
)
def test_cuda_of_torch_is_read_and_not_imported(tmp_path, monkeypatch, line, cuda):
    write(tmp_path / "torch/version.py", f"__version__ = '2.9.0'\n{line}\nhip = None\n")

    class Distribution:
        version = "2.9.0"

        def locate_file(self, name):
            return tmp_path / name

    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution())
    assert versions.detect().cuda == cuda


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("8.5", "10.0"),
        ("8.5.0.RC1", "8.5"),
        ("8.3.rc1", "8.3.rc2"),
        ("8.3.RC2", "8.5"),
        ("9.0.0-beta.1", "9.0.0"),
        ("", "1"),
    ],
)
def test_versions_are_compared_as_numbers(older, newer):
    assert versions.version_key(older) < versions.version_key(newer)


@pytest.mark.parametrize(
    ("one", "other"), [("8.5", "8.5.0"), ("2.13.0+cpu", "2.13.0"), ("8.5.0.RC1", "8.5.rc1"), ("10", "10.0")]
)
def test_spellings_of_one_version(one, other):
    assert versions.version_key(one) == versions.version_key(other)
