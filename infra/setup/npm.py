"""Packages of the npm registry: npm is the downloader, because it knows the user's registry, proxy and certificates.

`npm pack` downloads a package and installs nothing, runs nothing of it, and resolves no dependencies: all are pinned.
"""

import shutil
import subprocess
import tarfile

from errors import SetupError


def pack(package, target, npm):
    """Downloads the package's archive into `target`; `npm` is the command that does it."""
    what = f"{package['npm']} {package['version']}"
    print(f"fresco set-up: downloading {what}, {package['bytes'] / 1e3:.0f} KB", flush=True)
    target.mkdir(parents=True, exist_ok=True)
    command = [*npm, "pack", "--silent", "--ignore-scripts", "--cache", str(target / "cache"),
               f"{package['npm']}@{package['version']}"]
    tried = subprocess.run(command, cwd=target, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    files = list(target.glob("*.tgz"))
    if tried.returncode != 0 or len(files) != 1:
        why = tried.stderr.splitlines() or [f"npm exited with {tried.returncode}"]
        raise SetupError(f"cannot download {what}: {why[0]}")
    return files[0]


def unpack(file, take, staging):
    """Extracts the members named by `take` and nothing else."""
    with tarfile.open(file) as archive:
        for member, to in take.items():
            path = staging / to
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.extractfile(member) as source, open(path, "wb") as sink:
                shutil.copyfileobj(source, sink)


def command(node):
    """The npm that came with this node where ours was fetched, or the user's."""
    script = node.resolve().with_name("npm") / "bin" / "npm-cli.js"
    if script.exists():
        return [str(node), str(script)]
    if found := shutil.which("npm"):
        return [found]
    raise SetupError(f"npm not found beside {node}: install it, or take that node off the PATH")
