"""The command line: serve, start, supervise, reload, status, verify, stop, clean, plan."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

from config.errors import ConfigError
from config.folders import explain_os_error
from config.plan import read_plan
from config.terminal import JsonLines, print_in_any_locale
from server.command import FAILED, FLAGS, INTERRUPTED, USAGE_ERROR, Call, end, print_comparison, read_call
from server.errors import ServerError

COMMANDS = (
    *("serve", "start", "reload", "plan", "check-serve", "check-reload"),
    *("supervise", "status", "verify", "stop", "clean"),
)


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; 0 good, 1 failed or different, 2 a wrong value or wrong usage."""
    print_in_any_locale()
    command, *rest = [*(sys.argv[1:] if words is None else words)] or [""]
    if command not in COMMANDS:
        flags = "\n".join(f"  {flag:<14}{text}" for flag, text in FLAGS.items())
        usage = f"usage: python -m server {'|'.join(COMMANDS)} [FLAG…] NAME=VALUE…: got {command}"
        print(f"{usage}\n{flags}", file=sys.stderr)
        return USAGE_ERROR
    at_end = contextlib.ExitStack()
    try:
        call = read_call(command, rest)
        if call.settings.foreground and call.settings.log == "json":  # what it prints is the log
            at_end.enter_context(contextlib.redirect_stdout(JsonLines(sys.stdout)))
            at_end.enter_context(contextlib.redirect_stderr(JsonLines(sys.stderr)))
        code = run(call)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left must not raise again
        return FAILED
    except (ServerError, ConfigError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return USAGE_ERROR if isinstance(problem, ConfigError) else FAILED
    except OSError as problem:  # another user's folder, a full disk: nothing a traceback would explain
        print(f"error: {explain_os_error(problem)}", file=sys.stderr)
        return FAILED
    except subprocess.CalledProcessError as problem:  # it said why
        return problem.returncode
    except KeyboardInterrupt:
        print(f"\ninterrupted: `{command}` was not finished; run it again", file=sys.stderr)
        return INTERRUPTED
    finally:
        at_end.close()


def run(call: Call) -> int:
    """Each command imports what it alone needs: `make status` must be quick."""
    if call.command == "verify":
        return print_comparison(read_plan(call.run.plan), call)
    if call.command == "supervise":
        from server.supervisor.main import supervise

        return supervise(call.run)
    if call.command == "status":
        from server.call import render_calls
        from server.status import render_status

        text, serving = render_status(call.run)
        print(text)
        if serving:
            print(f"\n{render_calls(read_plan(call.run.plan), call.run, elsewhere=call.hide_token)}")
        return 0 if serving else FAILED
    if call.command in ("stop", "clean"):
        from server.stop import clean, stop

        if call.command == "clean":
            end(call.run)
        print(clean(call.run) if call.command == "clean" else stop(call.run).describe())
        return 0
    from server import serve

    commands: dict[str, Callable[[Call], int]] = {
        "serve": serve.serve, "start": serve.start_plan, "reload": serve.reload_plan,
        "plan": serve.print_plan, "check-serve": serve.check_serve, "check-reload": serve.check_reload,
    }  # fmt: skip
    return commands[call.command](call)
