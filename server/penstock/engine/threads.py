"""How many threads compute on a CPU: all, or one where the others gain little, by measurement.

Used by the engine for every step, and by Prepare, which measures first. Threads that share an operation wait for each other
at its end. On idle processors that costs microseconds; where something else runs, one of them may not be running, the
others spin meanwhile, and a step takes ten times as long as with one thread. The router and its clients run beside every
step: on two processors one token of a small model comes sooner from one thread that leaves them the other processor than
from two, and where grammars are followed as well, eight do. So the other number of threads is tried in turn with this one:
now and then, and when steps take much longer than the cost model says. What is compared is the time from one step's end to
the next one's, since what the threads take from others is in that: a plan or a mask that comes late.
"""

import bisect
import statistics
import time
from collections.abc import Callable

from penstock_kernels.run import MOST_MADE

# A step is slow when it takes SLOW times what the cost model says; SLOW_STEPS of them in a row begin a trial.
SLOW, SLOW_STEPS = 2.0, 8
# A trial: TURN steps with each number of threads in turn, TURNS times, of which the first of a turn does not count: what was taken from
# others before it is still in it. The first turn ends it if its steps take FAR times what they took before.
TURN, TURNS, FAR = 6, 3, 1.3
# The other number is taken if its median time is below GAIN of the current one's.
GAIN = 0.97
# So many times faster than one thread all of them have to be, in a trial and where nothing else runs; of long steps only by as much as router
# and clients could need meanwhile, in nanoseconds. Two threads read a large model's weights a fifth faster than one.
WORTH, WORTH_ALONE, COST_NS = 1.1, 1.3, 300_000.0
# Seconds from a trial to the next one, doubled by each that changes nothing.
PAUSE, LONGEST_PAUSE = 1.0, 60.0
# Steps of so many nanoseconds are cheap enough for trying one thread though all seem to do well.
CHEAP_NS = 5_000_000.0
# What steps take of late, of which each is so much, and by which factor it has to differ from before to be something else.
SMOOTHING, DIFFERENT = 0.02, 1.25
# What lies between two steps belongs to the second if it takes no longer than so many times the step; else nobody wanted one.
MOST_BETWEEN = 2.0
# Tokens up to which steps are of one kind, with a choice of its own; the last kind are larger ones. Operations of decodes are
# short, and so are their gains.
KINDS = (1, 8, 32)


def worth(together: float, most: float = WORTH) -> float:
    """How many times as long one thread has to take as all of them, which take so many nanoseconds, for these to be used."""
    return 1.0 + min(most - 1.0, COST_NS / together)


class Choice:
    """The number of threads for steps of one kind."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.settled = most
        self._trial: list[tuple[int, float, float]] | None = None
        self._slow = 0
        self._pause, self._next_trial = PAUSE, 0.0
        self._began = 0.0  # the first step
        self._lately, self._usual = 0.0, 0.0  # ratios; 0: unknown

    @property
    def other(self) -> int:
        """What is not settled on."""
        return 1 if self.settled == self.most else self.most

    @property
    def is_tried(self) -> bool:
        """Whether a trial is on."""
        return self._trial is not None

    @property
    def left(self) -> int:
        """Steps for which `now` stays what it is, as far as they are those of a trial."""
        return MOST_MADE if self._trial is None else TURN - len(self._trial) % TURN

    @property
    def now(self) -> int:
        """Threads for the next step."""
        if self._trial is None:
            return self.settled
        return self.settled if len(self._trial) // TURN % 2 else self.other

    def settle(self, alone: float, together: float) -> None:
        """Takes what was measured where nothing else runs: nanoseconds of a step with one thread, and with all."""
        self._take(1 if alone < worth(together, WORTH_ALONE) * together else self.most)

    def _take(self, count: int) -> None:
        self.settled, self._trial, self._slow = count, None, 0

    def observe(self, ratio: float, at: float, nanoseconds: float) -> None:
        """A step with `now` threads has taken so long, `ratio` times what the cost model says, at the second `at`."""
        if self._trial is not None:
            self._trial.append((self.now, ratio, nanoseconds))
            if len(self._trial) == TURN and self._is_far(self._trial):
                self._keep(at)
            elif len(self._trial) == 2 * TURN * TURNS:
                self._decide(self._trial, at)
            return
        self._slow = self._slow + 1 if ratio > SLOW else 0
        self._learn(ratio, at)
        wants = self.settled != self.most or nanoseconds < CHEAP_NS
        if at >= self._next_trial and (self._slow >= SLOW_STEPS or (wants and at >= self._began + PAUSE)):
            self._trial = []

    def _learn(self, ratio: float, at: float) -> None:
        """What steps take of late; when that is something else than at the last trial, the next one may come soon."""
        if not self._lately:
            self._lately = self._usual = ratio
            self._began = at
        # One that took long is one, however long.
        self._lately += SMOOTHING * (min(ratio, 2 * self._lately) - self._lately)
        if not self._usual / DIFFERENT < self._lately < self._usual * DIFFERENT:
            self._usual, self._pause = self._lately, PAUSE
            self._next_trial = min(self._next_trial, at + PAUSE)

    def _is_far(self, trial: list[tuple[int, float, float]]) -> bool:
        return self._slow < SLOW_STEPS and _median(trial, self.other) > FAR * self._lately

    def _decide(self, trial: list[tuple[int, float, float]], at: float) -> None:
        together = statistics.median(took for count, _, took in trial if count == self.most)
        ours, theirs = (
            _median(trial, wanted) * (1.0 if wanted == 1 else worth(together))
            for wanted in (self.settled, self.other)
        )
        self._lately = self._usual = _median(trial, self.other if theirs < GAIN * ours else self.settled)
        if theirs < GAIN * ours:
            self._take(self.other)
            self._pause, self._next_trial = PAUSE, at + PAUSE
        else:
            self._keep(at)

    def _keep(self, at: float) -> None:
        """A trial has changed nothing."""
        self._take(self.settled)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._next_trial = at + self._pause


def _median(trial: list[tuple[int, float, float]], count: int) -> float:
    """Of the ratios with so many threads, but those of the first step of a turn."""
    ratios = (ratio for number, (threads, ratio, _) in enumerate(trial) if number % TURN and threads == count)
    return statistics.median(ratios)


class Threads:
    """The threads of this process, for each kind of steps."""

    def __init__(self, most: int, apply: Callable[[int], None]) -> None:
        self.most = most
        self.choices = [Choice(most) for _ in range(len(KINDS) + 1)]
        self.expected: Callable[[int, int], float] | None = None  # nanoseconds, of tokens fed and attended to
        self._apply, self._applied = apply, most
        self._ended = 0.0  # the last step, in seconds

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

    def ahead(self) -> list[tuple[int, int]]:
        """Of steps of each kind how many threads compute them, and so many of them before `were` is told."""
        if self.expected is None:
            return [(self._applied, MOST_MADE) for _ in self.choices]
        return [(choice.now, choice.left) for choice in self.choices]

    def were(self, steps: list[list[int]]) -> None:
        """Steps that were made as `ahead` said: of each the tokens fed and attended to, how long it took, and when it ended, in nanoseconds."""
        begun = [choice for choice in self.choices if not choice.is_tried]
        for tokens, attended, took, ended in steps:
            choice = self.choice(tokens)
            # Those behind the one that began a trial are none of it.
            if not (choice.is_tried and choice in begun):
                self.end(tokens, attended, took, ended / 1e9)
        if self.expected is not None:
            self._applied = 0  # whatever the last one had

    def end(self, tokens: int, attended: int, nanoseconds: float, now: float | None = None) -> None:
        """After it. `now`: when that was, in seconds; None: now."""
        if self.expected is None:
            return
        if now is None:
            now = time.monotonic()
        since, self._ended = (now - self._ended) * 1e9, now
        if nanoseconds < since < (1.0 + MOST_BETWEEN) * nanoseconds:
            nanoseconds = since
        self.choice(tokens).observe(nanoseconds / self.expected(tokens, attended), now, nanoseconds)
