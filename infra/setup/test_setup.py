"""Rules of set-up that need no network: python3 -m unittest discover --start-directory infra/setup."""

import contextlib
import hashlib
import io
import json
import os
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

import setup


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        # Nothing may reach the real checkout, cache or environment.
        for patch in (
            mock.patch.object(setup, "DOT_FRESCO", self.folder / "checkout" / ".fresco"),
            mock.patch.dict(os.environ, {"PATH": str(self.folder / "bin")}),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            patch.__enter__()
            self.addCleanup(patch.__exit__, None, None, None)

    def wheel(self, members):
        file = self.folder / "tool-1.0.0-py3-none-any.whl"
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return file

    def program(self, folder, name, says):
        file = self.folder / folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\necho '{says}'\n")
        file.chmod(0o755)
        return file

    def artefact(self, file, take):
        pin = {"project": "tool", "version": "1.0.0", "bytes": 1, "platform": "any"}
        pin |= {"sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "take": take}
        return {"version": "1.0.0", setup.platform.machine(): [pin]}

    def test_only_the_named_members_are_unpacked(self):
        file = self.wheel({"a/include/x.h": "x", "a/lib/wanted.so": "w", "a/lib/cuda.so": "c", "a/include/../../evil": "e"})
        setup.unpack(file, {"a/include/": "include/", "a/lib/wanted.so": "lib/wanted.so"}, self.folder / "to")
        unpacked = {str(p.relative_to(self.folder / "to")) for p in (self.folder / "to").rglob("*") if p.is_file()}
        self.assertEqual(unpacked, {"include/x.h", "lib/wanted.so"})

    def test_of_a_package_only_the_named_files_are_kept(self):
        def extract(command, **_):
            for name in ("usr/bin/wanted", "etc/init.d/other"):
                path = Path(command[3]) / name
                path.parent.mkdir(parents=True)
                path.write_text(name)

        with mock.patch.object(setup.subprocess, "run", side_effect=extract):
            setup.unpack_package(self.folder / "p.deb", {"usr/bin/wanted": "wanted"}, self.folder / "to", self.folder)
        self.assertEqual([p.name for p in (self.folder / "to").iterdir()], ["wanted"])
        self.assertFalse((self.folder / "package").exists())

    def test_a_machine_without_apt_is_told_what_to_do(self):
        package = {"package": "tool", "version": "1", "bytes": 1, "sha256": "", "take": {}}
        with self.assertRaises(setup.SetupError) as refused:
            setup.download_package(package, self.folder)
        self.assertIn("PATH", str(refused.exception))

    def test_a_file_that_is_not_the_pinned_one_is_refused(self):
        file = self.wheel({"a": "damaged"})
        with self.assertRaises(setup.SetupError) as refused:
            setup.verify(file, "0" * 64, "tool 1.0.0")
        self.assertNotIn("\n", str(refused.exception))

    def test_a_second_set_up_downloads_nothing(self):
        file = self.wheel({"bin/tool": "#!/bin/sh"})
        artefact = self.artefact(file, {"bin/tool": "tool"})
        with mock.patch.object(setup, "download", return_value=file) as download:
            first = setup.cached(self.folder / "cache", "tool", artefact, setup.make_executable)
            second = setup.cached(self.folder / "cache", "tool", artefact, setup.make_executable)
        self.assertEqual(download.call_count, 1)
        self.assertEqual(first, second)
        self.assertTrue(os.access(first / "tool", os.X_OK))
        self.assertEqual({p.name for p in (self.folder / "cache").iterdir()}, {first.name, ".lock"})

    def test_a_half_deleted_cache_is_filled_again(self):
        take = {"bin/tool": "tool", "bin/other": "other"}
        artefact = self.artefact(self.wheel({"bin/tool": "t", "bin/other": "o"}), take)
        with mock.patch.object(setup, "download", side_effect=lambda *_: self.wheel({"bin/tool": "t", "bin/other": "o"})):
            folder = setup.cached(self.folder / "cache", "tool", artefact, setup.make_executable)
            (folder / "other").unlink()
            setup.cached(self.folder / "cache", "tool", artefact, setup.make_executable)
        self.assertTrue((folder / "other").exists())

    def test_other_pins_are_another_folder(self):
        folders = set()
        for digest in ("0" * 64, "1" * 64):
            artefact = self.artefact(self.wheel({"bin/tool": "t"}), {"bin/tool": "tool"})
            artefact[setup.platform.machine()][0]["sha256"] = digest
            with mock.patch.object(setup, "download", side_effect=lambda *_: self.wheel({"bin/tool": "t"})):
                folders.add(setup.cached(self.folder / "cache", "tool", artefact, setup.make_executable))
        self.assertEqual(len(folders), 2)

    def test_a_program_on_the_path_wins_when_it_is_new_enough(self):
        new_enough = {"on_path_version_min": [2, 12]}
        self.assertIsNone(setup.on_path("nats-server", new_enough))
        for says, wins in (("nats-server: v2.11.9", False), ("nats-server: v2.12.0", True), ("hello", False)):
            file = self.program("bin", "nats-server", says)
            self.assertEqual(setup.on_path("nats-server", new_enough), file if wins else None, says)
        self.assertIsNone(setup.on_path("nats-server", {}), "a linter is always the pinned one")

    def test_set_ups_own_link_on_the_path_is_not_the_users_program(self):
        self.program("checkout/.fresco/bin", "nats-server", "nats-server: v2.15.1")
        with mock.patch.dict(os.environ, {"PATH": str(setup.DOT_FRESCO / "bin")}):
            self.assertIsNone(setup.on_path("nats-server", {"on_path_version_min": [2, 12]}))

    def test_a_libtorch_of_the_user_wins_or_is_refused_by_name(self):
        with mock.patch.dict(os.environ, {"LIBTORCH": str(self.folder / "nowhere")}):
            with self.assertRaisesRegex(setup.SetupError, "LIBTORCH=.*nowhere"):
                setup.user_libtorch()
        for file in ("include/torch/csrc/api/include/torch/torch.h", "lib/libtorch_cpu.so"):
            (self.folder / "mine" / file).parent.mkdir(parents=True)
            (self.folder / "mine" / file).touch()
        with mock.patch.dict(os.environ, {"LIBTORCH": str(self.folder / "mine")}):
            self.assertEqual(setup.user_libtorch(), self.folder / "mine")

    def test_a_missing_compiler_is_named(self):
        with self.assertRaisesRegex(setup.SetupError, "^cargo not found"):
            setup.require_compilers()
        self.program("bin", "cargo", "")
        self.program("bin", "cc", "")
        with self.assertRaisesRegex(setup.SetupError, r"^g\+\+ not found"):
            setup.require_compilers()

    def test_a_link_is_moved_only_when_it_points_elsewhere(self):
        at = self.folder / "bin" / "tool"
        setup.link(at, self.folder / "a")
        before = os.lstat(at)
        setup.link(at, self.folder / "a")
        self.assertEqual(os.lstat(at).st_ino, before.st_ino)
        setup.link(at, self.folder / "b")
        self.assertEqual(os.readlink(at), str(self.folder / "b"))

    def test_an_unreachable_index_is_not_reported_as_a_missing_version(self):
        said = "WARNING: Retrying (Retry(total=4 …\nERROR: No matching distribution found for torch==2.13.0\n"
        self.assertIn("no package index is reachable", setup.why_pip_failed(said, 1))
        self.assertEqual(setup.why_pip_failed("ERROR: no space left\n", 1), "ERROR: no space left")

    def test_every_pin_is_complete_on_both_machines(self):
        artefacts = json.loads(setup.ARTEFACTS.read_text())
        programs = {"prometheus", "node", *setup.PROGRAMS, *setup.LINT_PROGRAMS}
        self.assertEqual(set(artefacts), {"libtorch", *setup.READ_BY_NODE, *programs})
        for name, artefact in artefacts.items():
            for machine in ("any",) if "any" in artefact else ("x86_64", "aarch64"):
                for wheel in artefact[machine]:
                    self.assertRegex(wheel["sha256"], "^[0-9a-f]{64}$", name)
                    self.assertTrue(machine == "any" or machine in wheel["platform"])
                    self.assertGreater(wheel["bytes"], 0)

    def test_a_package_of_npm_gives_only_what_is_taken(self):
        file = self.folder / "one-1.0.0.tgz"
        with tarfile.open(file, "w:gz") as archive:
            for name in ("package/index.js", "package/other.js"):
                info = tarfile.TarInfo(name)
                info.size = len(name)
                archive.addfile(info, io.BytesIO(name.encode()))
        staging = self.folder / "staging"
        setup.npm.unpack(file, {"package/index.js": "node_modules/one/index.js"}, staging)
        self.assertEqual((staging / "node_modules/one/index.js").read_text(), "package/index.js")
        self.assertEqual(len([path for path in staging.rglob("*") if path.is_file()]), 1)

    def test_npm_is_the_one_beside_a_fetched_node_or_the_users(self):
        node = self.program("cache", "node", "")
        with self.assertRaisesRegex(setup.SetupError, "^npm not found"):
            setup.npm.command(node)
        users = self.program("bin", "npm", "")
        self.assertEqual(setup.npm.command(node), [str(users)])
        script = self.program("cache/npm/bin", "npm-cli.js", "")
        self.assertEqual(setup.npm.command(node), [str(node), str(script)])


if __name__ == "__main__":
    unittest.main()
