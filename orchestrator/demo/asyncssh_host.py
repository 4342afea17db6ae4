"""An SSH server in Python for a machine without sshd: ``python -m orchestrator.demo.asyncssh_host FOLDER PORT``.

It behaves as sshd does where orch could tell: the command runs in the user's login shell, both streams pass byte by
byte, a lost line ends its pipes and not its processes, and only the one authorized key gets in. Loopback only.
"""

from __future__ import annotations

import asyncio
import functools
import os
import pwd
import signal
import sys
from pathlib import Path
from typing import Any

import asyncssh

READ_BYTES = 1 << 16


class _Access(asyncssh.SSHServer):
    """Keys only, for the user who runs it; forwarding is allowed, so that it can serve as a jump host."""

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return False

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True


async def _copy(reader: Any, writer: Any) -> None:
    """Copies until the end of one side; a side that is gone ends it."""
    try:
        while chunk := await reader.read(READ_BYTES):
            writer.write(chunk)
            await writer.drain()
    except (OSError, asyncssh.Error):
        return


async def _feed(session: Any, process: asyncio.subprocess.Process) -> None:
    assert process.stdin
    await _copy(session.stdin, process.stdin)
    process.stdin.close()


async def _end_pipes_with(session: Any, process: asyncio.subprocess.Process) -> None:
    """Closes the command's pipes once the line is gone, so that it learns of it: nobody would read them any more."""
    await session.channel.wait_closed()
    for number in range(3):
        pipe = process._transport.get_pipe_transport(number)  # type: ignore[attr-defined]  # no public way
        if pipe is not None:
            pipe.close()


async def _run_session(session: Any, home: Path) -> None:
    """Runs the command of one session in the login shell and reports how it ended."""
    user = pwd.getpwuid(os.getuid())
    if session.command is None:
        session.stderr.write(b"no interactive sessions here\n")
        session.exit(1)
        return
    process = await asyncio.create_subprocess_exec(
        user.pw_shell or "/bin/sh",
        "-c",
        session.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=home,
        env={**os.environ, "HOME": str(home), "USER": user.pw_name, "SHELL": user.pw_shell},
        start_new_session=True,
    )
    feeding = asyncio.create_task(_feed(session, process))
    watching = asyncio.create_task(_end_pipes_with(session, process))
    await asyncio.gather(_copy(process.stdout, session.stdout), _copy(process.stderr, session.stderr))
    code = await process.wait()
    feeding.cancel()
    watching.cancel()
    if code < 0:
        session.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
    else:
        session.exit(code)


async def serve(folder: Path, port: int) -> None:
    """Listens on the loopback until the process ends."""
    server = await asyncssh.listen(
        "127.0.0.1",
        port,
        server_factory=_Access,
        server_host_keys=[str(folder / "host_ed25519")],
        authorized_client_keys=str(folder / "authorized_keys"),
        process_factory=functools.partial(_run_session, home=folder / "home"),
        encoding=None,
        allow_pty=False,
        agent_forwarding=False,
    )
    async with server:
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
