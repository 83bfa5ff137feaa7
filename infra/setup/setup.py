"""Brings what cargo cannot: libtorch to link against, and programs to run.

Everything lands once in ${FRESCO_CACHE:-~/.cache/fresco}; the checkout only gets symlinks in
`.fresco/`, so that clones share one download and deleting a clone deletes nothing of value.
The wheels and their checksums are in artefacts.json. pip is the downloader because it knows the
user's mirror, proxy and certificates; `pip download` installs nothing, so it also works on an
externally managed Python, and naming platform and ABI makes the host's Python version irrelevant.
Prometheus is in no wheel: it comes out of Debian's package, which apt fetches and nobody installs.
The grammars of Grafana's query languages and the types of its dashboards are npm packages, which npm fetches and
nobody installs.

Must not know: the crates and the tests. Standard library only, Python 3.9 or newer.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import npm
from errors import SetupError

CHECKOUT = Path(__file__).resolve().parents[2]
DOT_FRESCO = CHECKOUT / ".fresco"
ARTEFACTS = Path(__file__).resolve().with_name("artefacts.json")

# What a build and its tests run, and what only checking a change needs.
PROGRAMS = ("nats-server", "cargo-nextest")
LINT_PROGRAMS = ("typos", "cargo-shear", "cargo-deny")
# What only tests run: one package, two programs; and node, for what it reads.
TEST_PROGRAMS = ("prometheus", "promtool", "node")
# What images are made of besides our own programs.
IMAGE_PROGRAMS = ("nats-server", "prometheus")
# No programs: what node parses the dashboards' queries with, and what it checks the dashboards with.
READ_BY_NODE = ("grammars", "schema")
ARTEFACT_OF = {"promtool": "prometheus"}
# A terminal gets a moving line; a log gets one line this often.
LOG_PROGRESS_PERIOD_S = 10.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lint", action="store_true", help="also " + ", ".join(LINT_PROGRAMS))
    parser.add_argument("--test", action="store_true", help="also " + ", ".join(TEST_PROGRAMS))
    parser.add_argument("--images", action="store_true", help="only libtorch, " + ", ".join(IMAGE_PROGRAMS))
    arguments = parser.parse_args()
    # SIGTERM must run the clean-up of the temporary folders, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        programs = IMAGE_PROGRAMS if arguments.images else PROGRAMS
        set_up(programs + LINT_PROGRAMS * arguments.lint + TEST_PROGRAMS * arguments.test)
    except (SetupError, OSError) as error:
        sys.exit(f"fresco set-up: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def set_up(programs):
    require_compilers()
    cache = Path(os.environ.get("FRESCO_CACHE") or Path.home() / ".cache" / "fresco").absolute()
    artefacts = json.loads(ARTEFACTS.read_text())
    libtorch = user_libtorch() or cached(cache, "libtorch", artefacts["libtorch"], finish_libtorch)
    link(DOT_FRESCO / "libtorch", libtorch)
    for name in programs:
        source = ARTEFACT_OF.get(name, name)
        artefact = artefacts[source]
        program = on_path(name, artefact) or cached(cache, source, artefact, make_executable) / name
        link(DOT_FRESCO / "bin" / name, program)
    for name in READ_BY_NODE if "node" in programs else ():
        link(DOT_FRESCO / name, cached(cache, name, artefacts[name], no_finish))


# --- what the machine must already have -------------------------------------------------------


def require_compilers():
    if not shutil.which("cargo"):
        raise SetupError("cargo not found: install the Rust toolchain, e.g. with rustup")
    if not shutil.which("cc"):
        raise SetupError("cc not found: install a C compiler (the linker of rustc), e.g. apt-get install g++")
    # The name the `cc` crate calls for torch-sys, unless CXX names another.
    compiler = os.environ.get("CXX") or "c++"
    if not shutil.which(compiler.split()[0]):
        raise SetupError(f"g++ not found ({compiler}): install a C++17 compiler, e.g. apt-get install g++")


def require_pip():
    probe = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True)
    if probe.returncode != 0:
        raise SetupError("pip not found: install pip for python3, e.g. apt-get install python3-pip")


# --- what the user brings wins ----------------------------------------------------------------


def user_libtorch():
    """The folder named by LIBTORCH, or None. Only one that torch-sys can link is accepted."""
    value = os.environ.get("LIBTORCH")
    if not value:
        return None
    folder = Path(value).absolute()
    for needed in ("include/torch/csrc/api/include/torch/torch.h", "lib/libtorch_cpu.so"):
        if not (folder / needed).exists():
            raise SetupError(f"LIBTORCH={value} has no {needed}: point it at a libtorch 2.13 folder, or unset it")
    return folder


def on_path(name, artefact):
    """The user's own program where the artefact allows one and it is new enough, or None."""
    version_min = artefact.get("on_path_version_min")
    # `make` puts .fresco/bin on the PATH; a link to itself would be the result of finding it there.
    path = os.pathsep.join(d for d in os.get_exec_path() if Path(d).absolute() != DOT_FRESCO / "bin")
    found = shutil.which(name, path=path) if version_min else None
    if not found:
        return None
    try:
        said = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"(\d+)\.(\d+)\.(\d+)", said)
    if version and [int(part) for part in version.groups()] >= version_min:
        # Absolute but not resolved: an upgrade that moves a symlink is followed.
        return Path(found).absolute()
    return None


# --- the cache --------------------------------------------------------------------------------


def cached(cache, name, artefact, finish):
    """The unpacked artefact, downloaded if this cache does not have exactly these pins.

    The folder's name carries a digest of the pins and the folder appears by one rename, so that
    its existence means complete, and a change of pins never meets the leftovers of the last.
    """
    wheels = wheels_for_host(name, artefact)
    pins = hashlib.sha256(json.dumps(wheels, sort_keys=True).encode()).hexdigest()[:8]
    folder = cache / f"{name}-{artefact['version']}-{pins}"
    if is_complete(folder, wheels):
        return folder
    if any("project" in wheel for wheel in wheels):
        require_pip()
    cache.mkdir(parents=True, exist_ok=True)
    with exclusive(cache), temporary_folder(cache) as scratch:
        if is_complete(folder, wheels):  # another set-up made it while this one waited
            return folder
        staging = scratch / "unpacked"
        for wheel in wheels:
            if "package" in wheel:
                file = download_package(wheel, scratch)
                unpack_package(file, wheel["take"], staging, scratch)
            elif "npm" in wheel:
                file = npm.pack(wheel, scratch / "npm", npm.command(DOT_FRESCO / "bin" / "node"))
                verify(file, wheel["sha256"], f"{wheel['npm']} {wheel['version']}")
                npm.unpack(file, wheel["take"], staging)
            else:
                file = download(wheel, scratch)
                unpack(file, wheel["take"], staging)
            file.unlink()  # 527 MB that nobody reads again
        finish(staging, artefact)
        if folder.exists():
            folder.rename(scratch / "incomplete")
        staging.rename(folder)
    print(f"fresco set-up: {name} {artefact['version']} is in {folder}", flush=True)
    return folder


def wheels_for_host(name, artefact):
    if "any" in artefact:
        return artefact["any"]
    system, machine = platform.system(), platform.machine()
    if system == "Linux" and platform.libc_ver()[0] == "glibc" and machine in artefact:
        return artefact[machine]
    by_hand = "set LIBTORCH to a libtorch 2.13 folder" if name == "libtorch" else f"put {name} on the PATH"
    raise SetupError(f"no pinned {name} for {system} {machine}, only for Linux with glibc on x86_64 and aarch64: {by_hand}")


def is_complete(folder, wheels):
    """Guards against a person's half-deleted cache; reads no bytes, a second run stays instant."""
    return all((folder / to).exists() for wheel in wheels for to in wheel["take"].values())


@contextlib.contextmanager
def exclusive(cache):
    with open(cache / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("fresco set-up: another set-up is filling this cache, waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def temporary_folder(cache):
    """Inside the cache: a rename must not cross file systems, and /tmp is often a small tmpfs."""
    # Under the lock nobody else has one, so what is here was left by a killed set-up.
    for leftover in cache.glob(".tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=".tmp-", dir=cache))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- one wheel --------------------------------------------------------------------------------


def download(wheel, scratch):
    what = f"{wheel['project']} {wheel['version']}"
    target = scratch / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir", "--no-deps"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--only-binary", ":all:"]
    command += ["--platform", wheel["platform"], "--python-version", "3.11", "--implementation", "cp"]
    command += ["--abi", "cp311", "--dest", str(target), f"{wheel['project']}=={wheel['version']}"]
    # pip downloads below TMPDIR, whose growth is the progress: pip draws its own bar on a terminal only.
    environment = {**os.environ, "TMPDIR": str(scratch), "PIP_REQUIRE_VIRTUALENV": "0"}
    errors = scratch / "pip-stderr"
    with open(errors, "w") as stderr:
        pip = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr)
        try:
            show_progress(pip, what, wheel["bytes"], scratch)
        finally:
            pip.kill()
            pip.wait()
    files = list(target.glob("*.whl")) if target.exists() else []
    if pip.returncode != 0 or len(files) != 1:
        raise SetupError(f"cannot download {what}: {why_pip_failed(errors.read_text(), pip.returncode)}")
    verify(files[0], wheel["sha256"], what)
    return files[0]


def why_pip_failed(said, exit_status):
    # Without an index pip ends on "no matching distribution", which would send people the wrong way.
    if "Retrying" in said or "Connection" in said:
        return "no package index is reachable: check the network, the proxy or pip's configuration"
    errors = [line for line in said.splitlines() if line.startswith("ERROR")]
    return errors[-1] if errors else f"pip exited with {exit_status}"


def show_progress(pip, what, size, scratch):
    on_terminal = sys.stdout.isatty()
    total = f"{size / 1e6:.0f} MB"
    print(f"fresco set-up: downloading {what}, {total}", flush=True)
    next_line_at = time.monotonic() + LOG_PROGRESS_PERIOD_S
    while True:
        try:
            pip.wait(timeout=0.25)
            break
        except subprocess.TimeoutExpired:
            pass
        # Capped: pip's last act is to copy the file, for a moment there are two.
        line = f"  {min(bytes_below(scratch), size) / 1e6:6.0f} of {total}"
        if on_terminal:
            print(f"\r{line}", end="", flush=True)
        elif time.monotonic() >= next_line_at:
            next_line_at += LOG_PROGRESS_PERIOD_S
            print(line, flush=True)
    if on_terminal:
        print("\r\033[K", end="", flush=True)


def bytes_below(scratch):
    """Of pip's temporary folders and the finished wheel, not of what was unpacked before."""
    total = 0
    for top in (*scratch.glob("pip-*"), scratch / "wheels"):
        for file in top.rglob("*"):
            with contextlib.suppress(OSError):  # pip moves files under our feet
                total += file.stat().st_size
    return total


def verify(file, sha256_pinned, what):
    digest = hashlib.sha256()
    with open(file, "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != sha256_pinned:
        raise SetupError(
            f"{what}: {file.name} has sha256 {digest.hexdigest()[:16]}…, pinned is {sha256_pinned[:16]}…: not used; "
            "the download is damaged or the package index serves another file"
        )


def unpack(file, take, staging):
    """Extracts the members named by `take` (a name, or a folder ending in /) and nothing else."""
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            to = destination(member.filename, take)
            if to is None or member.is_dir():
                continue
            path = staging / to
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, open(path, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)


def destination(member, take):
    if member in take:
        return take[member]
    for prefix, to in take.items():
        if prefix.endswith("/") and member.startswith(prefix) and ".." not in member.split("/"):
            return to + member[len(prefix):]
    return None


# --- one Debian package -----------------------------------------------------------------------


def download_package(package, scratch):
    what = f"{package['package']} {package['version']}"
    for program in ("apt-get", "dpkg-deb"):
        if not shutil.which(program):
            raise SetupError(f"{program} not found, which fetches {what}: put prometheus and promtool on the PATH")
    print(f"fresco set-up: downloading {what}, {package['bytes'] / 1e6:.0f} MB", flush=True)
    target = scratch / "packages"
    target.mkdir(exist_ok=True)
    # What the machine knows of its archive may be missing or old; then it is fetched into a folder of our own, which
    # needs no root and changes nothing.
    lists = scratch / "apt-lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    own = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={scratch}", "-o", "Debug::NoLocking=1"]
    wanted = f"{package['package']}={package['version']}"
    for options, first in (([], None), (own, "update")):
        if first:
            subprocess.run(["apt-get", *options, "-qq", first], cwd=target, capture_output=True, check=False)
        tried = subprocess.run(["apt-get", *options, "-qq", "download", wanted], cwd=target, capture_output=True, text=True)
        files = list(target.glob("*.deb"))
        if tried.returncode == 0 and len(files) == 1:
            verify(files[0], package["sha256"], what)
            return files[0]
    raise SetupError(
        f"apt-get has no {what} ({(tried.stderr.splitlines() or ['no word why'])[0]}): "
        "put prometheus and promtool, 2.42 or newer, on the PATH"
    )


def unpack_package(file, take, staging, scratch):
    """Extracts the files named by `take` and keeps nothing else; no script of the package runs."""
    whole = scratch / "package"
    subprocess.run(["dpkg-deb", "--extract", str(file), str(whole)], check=True)
    staging.mkdir(parents=True, exist_ok=True)
    for member, to in take.items():
        (whole / member).rename(staging / to)
    shutil.rmtree(whole)


# --- what the wheels lack ---------------------------------------------------------------------


def finish_libtorch(staging, artefact):
    # The wheel's own libtorch.so needs libtorch_cuda.so. torch-sys links -ltorch, and links CUDA
    # only where libtorch_cuda.so exists, so leaving that out is all it takes to be without.
    (staging / "lib" / "libtorch.so").symlink_to("libtorch_cpu.so")
    # torch-sys compares it with the version it was generated for.
    (staging / "build-version").write_text(artefact["version"] + "\n")


def make_executable(staging, _artefact):
    for program in filter(Path.is_file, staging.iterdir()):
        program.chmod(0o755)  # zip files made for pip carry no mode


def no_finish(_staging, _artefact):
    """An archive that has all there is to have."""


def link(at, to):
    """Points a symlink of the checkout at `to`; left untouched when it already does."""
    if at.is_symlink() and os.readlink(at) == str(to):
        return
    at.parent.mkdir(parents=True, exist_ok=True)
    fresh = at.with_name(f".{at.name}-{os.getpid()}")
    fresh.symlink_to(to)
    os.replace(fresh, at)


if __name__ == "__main__":
    main()
