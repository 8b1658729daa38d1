"""Writes all files of the plan of NAME=VALUE…, with the archives that are there, and starts nothing:
`python -m tests.end_to_end.write_plan`. What is changed in them then is a planted fault of `server start`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from config.folders import claim_run_folder
from config.render import write_plan_files
from config.settings import read_settings
from config.terminal import print_in_any_locale
from server.serve import PRIVATE_UMASK, make_server_plan

if __name__ == "__main__":
    print_in_any_locale()
    os.umask(PRIVATE_UMASK)
    settings = read_settings(sys.argv[1:])
    claim_run_folder(Path(settings.run_dir))
    write_plan_files(make_server_plan(settings)[0])
