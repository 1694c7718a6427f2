"""Make sure that there is a Chromium for the browser tests: find one, or install Debian's with apt.

Run by ``make test`` with the system's Python; standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

SHELL = "chromium-headless-shell"
"""Chromium without windows, which takes less of the processor"""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find(*, windows: bool = False) -> str | None:
    """Path of a Chromium: TOKENPATHS_CHROMIUM, or the first of the usual names on PATH.

    Args:
        windows: One that people have on their screens is preferred, as for times that are to be theirs.
    """
    given = os.environ.get("TOKENPATHS_CHROMIUM")
    if given:
        return given if os.path.exists(given) else None
    names = (*NAMES, SHELL) if windows else (SHELL, *NAMES)
    return next((path for name in names if (path := shutil.which(name))), None)


def install() -> bool:
    """Debian's package, where apt is at hand and we may use it."""
    apt = shutil.which("apt-get")
    if apt is None:
        return False
    prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if prefix and not shutil.which("sudo"):
        return False
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print("Installing Chromium for the browser tests …", flush=True)
    subprocess.run([*prefix, apt, "update"], **quiet, check=False)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([*prefix, apt, "install", "-y", SHELL], **quiet, env=environment, check=False)
    if find() is None:  # a distribution that has no such package
        subprocess.run([*prefix, apt, "install", "-y", "chromium"], **quiet, env=environment, check=False)
    return find() is not None


if __name__ == "__main__":
    if find() is None and not install():
        print(
            "No Chromium here and apt cannot give one: the browser tests will be skipped. "
            "Install Chromium or set TOKENPATHS_CHROMIUM to its path.",
            file=sys.stderr,
        )
