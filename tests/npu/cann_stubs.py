"""Stand-ins for CANN's libraries, so that the real torch_npu can be imported without an NPU.

torch_npu's shared objects are linked to CANN (libascendcl.so, libhccl.so, libatb.so, ...). To load
them, those files must be there and define the undefined symbols of the wheel; nothing of it computes
as long as tensors are on device "meta". The missing symbols come from the wheel itself:

1. each of its shared objects names the libraries it needs and the symbols it lacks;
2. symbols of torch, of the wheel or of the system are struck off;
3. of each symbol left a function is made that answers with an error (a mangled C++ name is a label
   for the assembler like any other), and all of them together go into each library left. They have
   no state, so it does not matter in which library the loader finds one.

The libraries go to the folder that the wheel's own RPATH searches, `torch_npu.libs`, next to the
package. They would hide a real CANN there, so they belong in an environment of their own.

It has as many devices as the environment variable NPU_STUB_DEVICES says, none without it. A
device can be set (unless NPU_STUB_FAILS is set), asked for its name and memory, and given events. It
still computes nothing.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

TOOLS = ("gcc", "nm", "readelf")

#: ACL_ERROR_RT_DRV_INTERNAL_ERROR: the result of a stand-in.
_ERROR = 507899

#: Those that must say something else, and C for their work on their arguments a0 ... a3.
_ANSWERS = {
    "aclrtGetDeviceCount": "*(uint32_t *)a0 = devices(); return 0;",
    # The queries of torch_npu when it opens a device, and of an open one: 60 of 64 GiB are free.
    "aclInit": "return devices() ? 0 : ERROR;",
    "aclrtSetDevice": 'return a0 < devices() && !getenv("NPU_STUB_FAILS") ? 0 : ERROR;',
    "aclrtGetDevice": "*(int32_t *)a0 = 0; return devices() ? 0 : ERROR;",
    "aclrtGetMemInfo": "*(size_t *)a1 = 60L << 30; *(size_t *)a2 = 64L << 30; return devices() ? 0 : ERROR;",
    "aclrtGetCurrentContext": "*(void **)a0 = &devices; return devices() ? 0 : ERROR;",
    "aclGetDeviceCapability": "*(int64_t *)a2 = 24; return devices() ? 0 : ERROR;",
    "HcclSetConfig": "return 0;",
    "aclrtSynchronizeDevice": "return devices() ? 0 : ERROR;",
    # Its memory is the host's, and a launch there ends at once: an event is the time of its record.
    "aclrtMalloc": "*(void **)a0 = malloc(a1); return devices() ? 0 : ERROR;",
    "aclrtFree": "free((void *)a0); return 0;",
    "aclrtCreateStreamWithConfig": "*(void **)a0 = &devices; return devices() ? 0 : ERROR;",
    "aclrtSynchronizeStream": "return devices() ? 0 : ERROR;",
    "aclrtSynchronizeStreamWithTimeout": "return devices() ? 0 : ERROR;",
    "aclrtCreateEventExWithFlag": "*(void **)a0 = calloc(1, sizeof(struct timespec)); return 0;",
    "aclrtRecordEvent": "return clock_gettime(CLOCK_MONOTONIC, (struct timespec *)a0) ? ERROR : 0;",
    "aclrtSynchronizeEvent": "return 0;",
    "aclrtEventElapsedTime": "*(float *)a0 = 1e3f * seconds(a1, a2); return 0;",
    "aclrtDestroyEvent": "free((void *)a0); return 0;",
    "aclGetCompileoptSize": 'return sizeof "disable";',
    "aclGetCompileopt": 'strncpy((char *)a1, "disable", a2); return 0;',
    # Both return char *, where a number would be taken for an address.
    "aclrtGetSocName": 'return (long)"Ascend910B2";',
    "aclGetRecentErrMsg": 'return (long)"this is a stand-in for CANN";',
    # Logging, and the end of the process.
    "aclAppLog": "return 0;",
    "aclFinalize": "return 0;",
    # torch_npu looks these up by name, so no linker lists them. The struct begins with char version[128].
    "aclrtSetDeviceSatMode": "return 0;",
    "aclrtSetOpExecuteTimeOut": "return 0;",
    "aclrtCreateEventWithFlag": "*(void **)a0 = calloc(1, sizeof(struct timespec)); return 0;",
    "aclSetCompileopt": "return 0;",
    "aclrtGetSysParamOpt": "*(int64_t *)a1 = 0; return 0;",
    "aclsysGetCANNVersion": 'strcpy((char *)a1, "9.0.0"); return 0;',
    "aclsysGetVersionStr": 'strcpy((char *)a1, "9.0.0"); return 0;',
}

_PROLOGUE = f"""\
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#define ERROR {_ERROR}
#include <time.h>
static long devices(void) {{ char *count = getenv("NPU_STUB_DEVICES"); return count ? atol(count) : 0; }}
static double seconds(long from, long to) {{
    struct timespec *a = (struct timespec *)from, *b = (struct timespec *)to;
    return b->tv_sec - a->tv_sec + 1e-9 * (b->tv_nsec - a->tv_nsec);
}}
"""
_FUNCTION = """\
long f{i}(long a0, long a1, long a2, long a3) __asm__("{name}");
long f{i}(long a0, long a1, long a2, long a3) {{ {body} }}
"""


def build(packages: Path, torch_libraries: Path) -> list[str]:
    """Makes the libraries that torch_npu lacks.

    Args:
        packages: the site-packages folder that holds torch_npu.
        torch_libraries: torch's own lib folder.

    Returns:
        Their file names.

    Raises:
        subprocess.CalledProcessError: gcc or binutils failed.
    """
    libraries, symbols = _missing(packages / "torch_npu", torch_libraries)
    bodies = dict.fromkeys(symbols, "return ERROR;") | _ANSWERS
    functions = [_FUNCTION.format(i=i, name=name, body=body) for i, (name, body) in enumerate(bodies.items())]
    folder = packages / "torch_npu.libs"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        source, code = Path(temporary) / "stubs.c", Path(temporary) / "stubs.o"
        source.write_text(_PROLOGUE + "".join(functions))
        _run("gcc", "-fPIC", "-c", source, "-o", code)
        for name in libraries:
            _run("gcc", "-shared", f"-Wl,-soname,{name}", code, "-o", folder / name)
    return libraries


def _missing(torch_npu: Path, torch_libraries: Path) -> tuple[list[str], list[str]]:
    """Names of the libraries that no one has, and the symbols that no one defines."""
    wheel = sorted(torch_npu.rglob("*.so"))
    torch = sorted(torch_libraries.glob("*.so*"))
    system = dict(re.findall(r"^\s*(\S+) \(.*\) => (\S+)$", _run("/sbin/ldconfig", "-p"), re.MULTILINE))
    needed = {name for path in wheel for name in re.findall(r"\(NEEDED\).*\[(.+?)\]", _run("readelf", "-d", path))} - {
        path.name for path in wheel + torch
    }
    present = [Path(system[name]) for name in needed if name in system]
    defined = {name for path in [*wheel, *torch, *present] for name, _ in _symbols(path, "defined")}
    undefined = {
        name
        for path in wheel
        for name, kind in _symbols(path, "undefined")
        # Weak ones may stay undefined, and the interpreter has Python's own.
        if kind not in "wv" and not re.match("_?Py", name)
    }
    return sorted(needed - system.keys()), sorted(undefined - defined)


def _symbols(path: Path, which: str) -> list[tuple[str, str]]:
    """Name, its version cut off, and kind of each dynamic symbol."""
    fields = (line.split() for line in _run("nm", "-D", f"--{which}-only", path).splitlines())
    return [(name.partition("@")[0], kind) for *_, kind, name in fields]


def _run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
