import signal

from zoo.training.signals import StopSignal


def test_handlers_of_the_host_program_are_restored() -> None:
    def handler(*_: object) -> None: ...

    numbers = [each for each in (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGCHLD", None)) if each is not None]
    before = [signal.signal(number, handler) for number in numbers]
    try:
        stop = StopSignal()
        stop.install()
        stop.install()
        signal.raise_signal(signal.SIGTERM)
        assert stop.exit_code == 143
        stop.uninstall()
        stop.uninstall()
        assert [signal.getsignal(number) for number in numbers] == [handler] * len(numbers)
    finally:
        for number, former in zip(numbers, before, strict=True):
            signal.signal(number, former)
