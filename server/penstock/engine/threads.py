"""How many threads compute on a CPU: all, or one where the others gain little, by measurement.

Used by the engine for every step, and by Prepare, which measures first. Threads that share an operation wait for each other
at its end. On idle processors that costs microseconds; where something else runs, one of them may not be running, the
others spin meanwhile, and a step takes ten times as long as with one thread. So when steps take much longer than the cost
model says, the other number of threads is tried in turn with this one, and one thread tries all of them again from time
to time. The router and its clients run beside every step: on two processors one token of a small model comes sooner
from one thread that leaves them the other processor than from two, which are a little faster where nothing else runs.
"""

import bisect
import statistics
import time
from collections.abc import Callable

# A step is slow when it takes SLOW times what the cost model says; SLOW_STEPS of them in a row begin a trial.
SLOW, SLOW_STEPS = 2.0, 8
# A trial: TURN steps with each number of threads in turn, TURNS times. The other number is taken if its median time
# is below GAIN of the current one's, where all threads count as fast as they would be without what they cost others.
TURN, TURNS, GAIN = 3, 2, 0.9
# So many times faster than one thread all of them have to be; of long steps only by as much as router and clients could need meanwhile,
# in nanoseconds. Two threads read a large model's weights a fifth faster than one.
WORTH, COST_NS = 1.3, 300_000.0
# Seconds from a trial to the next one, doubled by each that changes nothing.
PAUSE, LONGEST_PAUSE = 1.0, 60.0
# Tokens up to which steps are of one kind, with a choice of its own; the last kind are larger ones. Operations of decodes are
# short, and so are their gains.
KINDS = (1, 8, 32)


def worth(together: float) -> float:
    """How many times as long one thread has to take as all of them, which take so many nanoseconds, for these to be used."""
    return 1.0 + min(WORTH - 1.0, COST_NS / together)


class Choice:
    """The number of threads for steps of one kind."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.settled = most
        self._trial: list[tuple[int, float, float]] | None = None
        self._slow = 0
        self._pause, self._next_trial = PAUSE, 0.0

    @property
    def other(self) -> int:
        """What is not settled on."""
        return 1 if self.settled == self.most else self.most

    @property
    def now(self) -> int:
        """Threads for the next step."""
        if self._trial is None:
            return self.settled
        return self.settled if len(self._trial) // TURN % 2 else self.other

    def settle(self, alone: float, together: float) -> None:
        """Takes what was measured: nanoseconds of a step with one thread, and with all."""
        self._take(1 if alone < worth(together) * together else self.most)

    def _take(self, count: int) -> None:
        self.settled, self._trial, self._slow = count, None, 0

    def observe(self, ratio: float, at: float, nanoseconds: float) -> None:
        """A step with `now` threads has taken so long, `ratio` times what the cost model says, at the second `at`."""
        if self._trial is not None:
            self._trial.append((self.now, ratio, nanoseconds))
            if len(self._trial) == 2 * TURN * TURNS:
                self._decide(self._trial, at)
            return
        self._slow = self._slow + 1 if ratio > SLOW else 0
        wants = self._slow >= SLOW_STEPS or self.settled != self.most
        if wants and at >= self._next_trial:
            self._trial = []

    def _decide(self, trial: list[tuple[int, float, float]], at: float) -> None:
        together = statistics.median(took for count, _, took in trial if count == self.most)
        ours, theirs = (
            statistics.median(ratio for count, ratio, _ in trial if count == wanted)
            * (1.0 if wanted == 1 else worth(together))
            for wanted in (self.settled, self.other)
        )
        if theirs < GAIN * ours:
            self._take(self.other)
            self._pause = PAUSE
        else:
            self._take(self.settled)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._next_trial = at + self._pause


class Threads:
    """The threads of this process, for each kind of steps."""

    def __init__(self, most: int, apply: Callable[[int], None]) -> None:
        self.most = most
        self.choices = [Choice(most) for _ in range(len(KINDS) + 1)]
        self.expected: Callable[[int, int], float] | None = None  # nanoseconds, of tokens fed and attended to
        self._apply, self._applied = apply, most

    def choice(self, tokens: int) -> Choice:
        """The choice for steps that feed this many tokens."""
        return self.choices[bisect.bisect_left(KINDS, tokens)]

    def use(self, count: int) -> None:
        """Sets the number of threads that compute."""
        if count != self._applied:
            self._apply(count)
            self._applied = count

    def begin(self, tokens: int) -> None:
        """Before a step, once there is a cost model."""
        if self.expected is not None:
            self.use(self.choice(tokens).now)

    def end(self, tokens: int, attended: int, nanoseconds: float) -> None:
        """After it."""
        if self.expected is not None:
            ratio = nanoseconds / self.expected(tokens, attended)
            self.choice(tokens).observe(ratio, time.monotonic(), nanoseconds)
