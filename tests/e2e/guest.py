"""A guest of this machine with a Debian kernel, in which tests run on control groups v2 with all controllers.

QEMU boots the kernel of the package `linux-image-amd64`, with the machine's own file system as its root, read-only over
9p; directories that tests write to are in the guest's memory. The first program is busybox, in an initial file system
that is made here with the kernel's modules. As a program: run a command in a guest, from the work tree,

    python -m tests.e2e.guest [--accelerator kvm] [--seconds N] COMMAND...
"""

from __future__ import annotations

import argparse
import lzma
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

PACKAGES: Final = ("qemu-system-x86", "linux-image-amd64", "busybox-static")
_QEMU: Final = "qemu-system-x86_64"
_WANTED: Final = ("virtio_pci", "virtio_blk", "9pnet_virtio", "9p")
_DEPENDS: Final = re.compile(rb"\0depends=([^\0]*)\0")
_DISK_BYTES: Final = 16 << 20

_INIT: Final = """\
#!/bin/busybox sh
/bin/busybox mkdir -p /bin /proc /sys /dev /host
/bin/busybox --install -s /bin
mount -t proc proc /proc && mount -t sysfs sysfs /sys && mount -t devtmpfs dev /dev
for each in {modules}; do insmod /modules/$each.ko || poweroff -f; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=524288 root /host || poweroff -f
for each in tmp run dev/shm; do
    [ $each = dev/shm ] && mount --move /dev /host/dev && mkdir -p /host/dev/shm
    mount -t tmpfs tmpfs /host/$each
done
mount --move /proc /host/proc && mount --move /sys /host/sys
mount -t cgroup2 cgroup2 /host/sys/fs/cgroup
echo "+cpu +cpuset +memory +io" > /host/sys/fs/cgroup/cgroup.subtree_control
mkdir -p /host/tmp/result && mount -t 9p -o trans=virtio,version=9p2000.L result /host/tmp/result
ip link set lo up
cut -d" " -f1 /host/proc/uptime > /host/tmp/result/booted
chroot /host /bin/sh /tmp/result/command > /host/tmp/result/output 2>&1
echo $? > /host/tmp/result/status
sync
poweroff -f
"""


class CannotBoot(Exception):
    """The message says what went wrong, with the end of the guest's console."""


class Kernel(NamedTuple):
    """A kernel of this machine: its image and the directory of its modules."""

    image: Path
    modules: Path


class Outcome(NamedTuple):
    """The exit status and the output of a command in the guest, and the seconds until it began."""

    status: int
    output: str
    boot_seconds: float


def lacking() -> str:
    """Return why this machine cannot run guests; empty if it can."""
    if os.geteuid() != 0:
        return "shares the machine's files with a guest: needs root"
    if platform.machine() != "x86_64":
        return f"guests are made for x86_64, not {platform.machine()}"
    busybox = shutil.which("busybox")
    has = (shutil.which(_QEMU), found_kernel(), busybox and _is_static(Path(busybox)))
    missing = [package for package, found in zip(PACKAGES, has, strict=True) if not found]
    if missing:
        return f"there is no {', '.join(missing)}: `apt-get install --no-install-recommends {' '.join(missing)}`"
    return ""


def found_kernel() -> Kernel | None:
    """Return the newest kernel of this machine that has the modules for a shared file system, None without one."""
    found = [Kernel(image, modules) for image in Path("/boot").glob("vmlinuz-*")
             if (modules := Path("/lib/modules", image.name.removeprefix("vmlinuz-"))).is_dir()
             and any((modules / "kernel/fs/9p").glob("9p.ko*"))]
    return max(found, key=lambda each: [int(part) for part in re.findall(r"\d+", each.image.name)], default=None)


def _is_static(program: Path) -> bool:
    return b"/ld-linux" not in program.read_bytes()


def run(command: Sequence[str], directory: Path, *, environment: Mapping[str, str], seconds: float,
        accelerator: str = "tcg") -> Outcome:
    """Run a command in a guest, which begins in the current directory; `directory` is shared as /tmp/result.

    The guest has as many CPUs as this machine, 2 GiB of memory, and a disk of 16 MiB. `kvm` is faster than `tcg`, but
    a machine that is a guest itself may have one that Debian's kernel does not boot with.

    Raises:
        CannotBoot: The command has not ended, for whatever reason, within the time.
    """
    kernel, busybox = found_kernel(), shutil.which("busybox")
    assert kernel is not None
    assert busybox is not None
    given = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    (directory / "command").write_text(f"cd {shlex.quote(str(Path.cwd()))} && env {given} {shlex.join(command)}\n")
    initial, disk, console = (directory / name for name in ("initial", "disk", "console"))
    initial.write_bytes(_initial_files(kernel, Path(busybox)))
    disk.touch()
    os.truncate(disk, _DISK_BYTES)
    arguments = (
        _QEMU, "-accel", accelerator, "-cpu", "max", "-smp", str(os.cpu_count()), "-m", "2048", "-nodefaults",
        "-no-reboot", "-display", "none", "-serial", f"file:{console}", "-kernel", str(kernel.image),
        "-initrd", str(initial),
        "-append", "console=ttyS0 quiet panic=-1 psi=1",
        "-drive", f"file={disk},format=raw,if=virtio",
        "-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap",
        "-virtfs", f"local,path={directory},mount_tag=result,security_model=none")
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=seconds)
        said = done.stderr
    except subprocess.TimeoutExpired:
        said = f"it has not ended within {seconds:.0f} seconds"
    status, output = directory / "status", directory / "output"
    if not status.exists():
        written = output.read_text() if output.exists() else ""
        raise CannotBoot("\n".join((said, console.read_text(errors="replace")[-3000:], written[-3000:])))
    return Outcome(int(status.read_text()), output.read_text(), float((directory / "booted").read_text()))


def _initial_files(kernel: Kernel, busybox: Path) -> bytes:
    """Return the guest's initial file system: busybox, the first program, and the modules in their order."""
    modules = dict(_modules(kernel, _WANTED))
    files = {"bin/busybox": busybox.read_bytes(), "init": _INIT.format(modules=" ".join(modules)).encode(),
             **{f"modules/{name}.ko": content for name, content in modules.items()}}
    entries = [*((name, stat.S_IFDIR | 0o755, b"") for name in ("bin", "modules")),
               *((name, stat.S_IFREG | 0o755, content) for name, content in files.items())]
    return b"".join(_archived(*each) for each in entries) + _archived("TRAILER!!!", 0, b"")


def _modules(kernel: Kernel, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield modules and what they depend on, dependencies first; one may come twice.

    What has no file is built into the kernel.
    """
    for name in names:
        path = next(kernel.modules.rglob(f"{name.replace('_', '[_-]')}.ko*"), None)
        if path is not None:
            content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
            depends = _DEPENDS.search(content)
            if depends is not None and depends[1]:
                yield from _modules(kernel, depends[1].decode().split(","))
            yield name.replace("-", "_"), content


def _archived(name: str, mode: int, content: bytes) -> bytes:
    """Return an entry of a cpio archive in the format `newc`."""
    numbers = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % number for number in numbers) + name.encode() + b"\0"
    return _aligned(head) + _aligned(content)


def _aligned(content: bytes) -> bytes:
    return content + bytes(-len(content) % 4)


def main() -> int:
    """Run the command of the command line in a guest; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.guest")
    parser.add_argument("--accelerator", choices=["tcg", "kvm"], default="tcg")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if reason := lacking():
        sys.exit(reason)
    environment = {name: value for name, value in os.environ.items() if name.startswith(("KOORD_POLICY_", "PATH"))}
    with tempfile.TemporaryDirectory() as directory:
        try:
            done = run(given.command, Path(directory), seconds=given.seconds, accelerator=given.accelerator,
                       environment={**environment, "HOME": str(Path.home()), "PYTHONDONTWRITEBYTECODE": "1"})
        except CannotBoot as error:
            sys.exit(str(error))
    print(f"{done.output}booted within {done.boot_seconds:.0f} s, status {done.status}")
    return done.status


if __name__ == "__main__":
    sys.exit(main())
