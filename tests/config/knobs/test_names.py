"""Which names are refused, with which words, and which ordinary ones never are."""

from __future__ import annotations

import pytest

from config.errors import ConfigError
from config.knobs.commands import (
    check_environment,
    check_given,
    find_nearest,
    is_misspelt,
    list_read,
)
from config.knobs.table import KNOBS, find

ORDINARY = """
" PATH HOME USER USERS USERNAME LOGNAME SHELL TERM LANG LC_ALL LANGUAGE TZ PWD OLDPWD SHLVL DISPLAY EDITOR
PAGER HOSTNAME HOSTTYPE MACHTYPE OSTYPE MAIL MODE MODULES MODULE_PATH MODELS_DIR MODEL_DIR MODELS_PATH
MODEL_PATH CPU CPUS_PER_TASK NCPU NPROC NWORKERS NUM_WORKERS MAX_WORKERS WORKERS_COUNT WORKER_ID DATE RATES
SEEDS PORTS HOST SERVICE_PORT URI URLS PROXY http_proxy https_proxy no_proxy HTTP_PROXY NO_PROXY FTP_PROXY
NODE_ENV IMAGES IMAGE_NAME IMAGE_TAG STORES STORAGE RESTORE DRIVERS_PATH MEMORY_LIMIT MEM TARGET_ARCH
TARGET_DIR FORMATTER OUTPUT_DIR OUTPUT_FILE RESULTS_DIR RESULT_PATH PROFILER PYTHON2 PYTHON3 PYTHONS
PYTHONPATH PYTHONHOME PYTHON_VERSION PYENV_VERSION PYENV_ROOT pythonLocation VIRTUAL_ENV CONDA_PREFIX
CONDA_DEFAULT_ENV PIP_INDEX_URL SEEDED RUN_ID RUNNER_OS RUNNER_TEMP RUNNER_TOOL_CACHE GITHUB_RUN_ID
GITHUB_WORKSPACE CI CI_JOB_ID CI_RUNNER_ID CI_REGISTRY_IMAGE BUILD_NUMBER JENKINS_URL JOB_NAME
EXECUTOR_NUMBER TRAVIS GITLAB_CI BUILDKITE DOCKER_HOST KUBERNETES_PORT KUBERNETES_SERVICE_HOST
KUBERNETES_PORT_443_TCP MODELS_PORT MODELS_SERVICE_HOST CPU_KIT_PORT CPU_KIT_SERVICE_PORT
SLURM_CPUS_PER_TASK SLURM_JOB_ID OMP_NUM_THREADS OMP_PROC_BIND OPENMPI_HOME OPENMP_HOME OPENAI_API_KEY
KMP_AFFINITY MKL_NUM_THREADS LD_PRELOAD LD_LIBRARY_PATH MALLOC_CONF MALLOC_ARENA_MAX JAVA_HOME JAVA_OPTS
MAKEFLAGS MAKELEVEL CC CXX CFLAGS SSH_AUTH_SOCK SSH_CONNECTION XDG_RUNTIME_DIR XDG_DATA_DIRS
DBUS_SESSION_BUS_ADDRESS SUDO_USER SUDO_COMMAND TMPDIR TEMP TMUX STY WINDOWID COLORTERM LS_COLORS HISTSIZE _
name out src system builder stdenv version store image model port seed rate pairs url a b TRANSFORMERS_CACHE
HF_HOME TORCH_HOME TORCH_LOGS NETWORKX_BACKEND AWS_PROFILE AWS_REGION REQUESTS_CA_BUNDLE SSL_CERT_FILE
CURL_CA_BUNDLE CATFILES DURATION_MS SECONDS_PER_YEAR BOUNDS REPEATED SCENE EVALUATE EVALS WEIGHTED OPENMPI
TARGETS RESULTS OUTPUTS PROFILES
"""


@pytest.mark.parametrize(
    "name", ["PRECISON", "precision", "PRECIISION", "PERCISION", "WORKER", "WIEGHTS", "OPENPM"]
)
def test_an_environments_near_name_is_refused(name):
    (said,) = check_environment([name], KNOBS.values())
    assert f"the environment has {name}, " in said


def test_ordinary_environments_pass():
    foreign = [name for name in ORDINARY.split() if name not in KNOBS]
    assert check_environment(foreign, KNOBS.values()) == []


def test_what_no_goal_reads_is_not_looked_for():
    """A server must be stopped in any environment."""
    assert check_environment(["PRECISON"], list_read(["stop"])) == []
    assert check_environment(["PRECISON"], list_read(["help"])) == []
    assert check_environment(["PRECISON"], list_read(["stop", "serve"])) != []


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("PRECISON", "PRECISION"),
        ("precision", "PRECISION"),
        ("Workers", "WORKERS"),
        ("CORES_PER", "CORES_PER_WORKER"),
        ("PREC", "PRECISION"),
        ("PRE", None),
        ("LOADTEST_CPU", None),
        ("RUNDIR", "RUN_DIR"),
        ("MODLES", "MODELS"),
        ("USER", "USERS"),
        ("THREADS", None),
        ("DESTDIR", None),
        ("X", None),
    ],
)
def test_a_name_on_the_command_line_is_answered_with_the_nearest(given, meant):
    nearest = find_nearest(given)
    assert (nearest and nearest.name) == meant
    (said,) = check_given([given], ["serve"])
    assert f"got {given}; do: {f'write {meant}= ' if meant else ''}" in said


def test_every_knob_that_is_long_enough_is_protected_against_each_slip_of_one_letter():
    for name in (name for name in KNOBS if len(name) >= 6):
        dropped = [name[:i] + name[i + 1 :] for i in range(1, len(name))]
        swapped = [name[:i] + name[i + 1] + name[i] + name[i + 2 :] for i in range(1, len(name) - 1)]
        doubled = [name[:i] + name[i : i + 1] + name[i:] for i in range(len(name) - 1)]
        slips = {*dropped, *swapped, *doubled, name.lower()} - {name}
        assert [slip for slip in slips if not is_misspelt(slip, name)] == []


def test_a_knob_that_is_not_in_the_table_is_an_error():
    with pytest.raises(
        ConfigError, match=r"must be one of config/knobs/table\.py: got NOPE; add it there first"
    ):
        find("NOPE")
