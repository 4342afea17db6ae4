"""Signals: what breaks the waiting for work, what does not break a putting-back, and what is left whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from orchestrator.interrupts import LOOK_EVERY_S, interruptible, raise_on_signals, shielded
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    """The program's own handlers, and pytest's afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    raise_on_signals()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: signal.Signals) -> None:
    """The signal to this process."""
    os.kill(os.getpid(), number)


def test_work_gives_its_result_or_its_error() -> None:
    """As if it had been called, though it runs in another thread."""
    threads = []
    assert interruptible(lambda: threads.append(threading.get_ident()) or 7, pytest.fail) == 7
    assert threads != [threading.get_ident()]
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0, pytest.fail)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_waiting_and_never_the_work(number: signal.Signals) -> None:
    """KeyboardInterrupt with the signal's name; the work holds its lock until it is asked to end, and lets it go."""
    lock, has_begun, is_abandoned, ended = threading.Lock(), threading.Event(), threading.Event(), []

    def work() -> None:
        with lock:
            has_begun.set()
            is_abandoned.wait()
            ended.append("whole")

    def interrupt() -> None:
        has_begun.wait()
        send(number)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt, match=number.name):
        interruptible(work, is_abandoned.set)
    wait_until(lambda: ended == ["whole"])
    assert lock.acquire(timeout=20)


def test_a_signal_that_python_dropped_ends_the_waiting_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is raised while an object is finalized gets lost; the next waiting raises it."""

    class Finalized:
        def __del__(self) -> None:
            send(signal.SIGTERM)

    is_abandoned = threading.Event()
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    Finalized()
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        interruptible(is_abandoned.wait, is_abandoned.set)
    assert interruptible(lambda: is_abandoned.wait(20) and time.sleep(3 * LOOK_EVERY_S), pytest.fail) is None


def test_inside_a_shield_and_in_other_threads_work_is_called_as_it_is() -> None:
    """No thread more, and a signal waits for the end of the shield."""
    threads = []
    with pytest.raises(KeyboardInterrupt), shielded("testing"):
        send(signal.SIGTERM)
        interruptible(lambda: threads.append(threading.get_ident()), pytest.fail)
    assert threads == [threading.get_ident()]
    found: list[bool] = []

    def other() -> None:
        interruptible(lambda: found.append(threading.get_ident() == own.ident), pytest.fail)

    own = threading.Thread(target=other)
    own.start()
    own.join()
    assert found == [True]


def test_a_shield_tells_of_every_signal_and_gives_the_handlers_back(capsys: pytest.CaptureFixture[str]) -> None:
    """One line a signal; after it a signal raises at once again, also one that came in a nested shield."""
    done = []
    with pytest.raises(KeyboardInterrupt, match="SIGINT"), shielded("putting the host back"):
        send(signal.SIGINT)
        send(signal.SIGHUP)
        done.append("all of it")
    assert done == ["all of it"]
    assert capsys.readouterr().err.count("putting the host back; this is not interrupted") == 2
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGTERM)


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    """Under nohup, in a shield too."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise_on_signals()
    with shielded("testing"):
        send(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


ASKED = """
import signal, sys, time
from orchestrator.interrupts import asking, raise_on_signals
raise_on_signals()
answers = iter(map(eval, sys.argv[1:]))
def question():
    print("asked", flush=True)
    return next(answers)
try:
    with asking(question):
        print("ready", flush=True)
        for _ in range(600):
            time.sleep(0.1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    ("answers", "told"),
    [(["False"], ["asked", "interrupted"]), (["True"], ["asked", "interrupted"])],
    ids=["stop now", "go on, then a second one"],
)
def test_the_first_ctrl_c_asks_and_the_second_raises(answers: list[str], told: list[str]) -> None:
    """Whoever says to go on is not interrupted; one more Ctrl-C is not asked about."""
    process = subprocess.Popen([sys.executable, "-c", ASKED, *answers], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    with process.stdout as out:
        assert out.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        seen = [out.readline().strip()]
        if answers == ["True"]:
            process.send_signal(signal.SIGINT)
        seen.append(out.readline().strip())
    process.wait()
    assert seen == told
