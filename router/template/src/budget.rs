//! What one rendering may still spend: steps, bytes, depth and time. Templates come from model folders and their
//! input from clients, so that neither is trusted with any of these. Everything that visits the elements of a
//! value, or makes a value or a text, asks here first.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{Error, ErrorKind};

/// Bytes of the longest text that a rendering may make.
pub const MAX_TEXT: usize = 32 << 20;
/// Elements of the longest list.
pub const MAX_ITEMS: usize = 1_000_000;
/// Containers within containers. JSON from clients has 128 levels at most. Values are dropped, compared and
/// printed by recursion, so that this bounds the stack too.
pub const MAX_NESTING: u32 = 200;
/// Steps for seconds at most, and thousands of messages. They end a rendering much earlier than the time, which is for
/// what was counted too low.
pub const LIMITS: Limits = Limits { steps: 20_000_000, time: Duration::from_secs(10) };

/// Bytes of all values that one rendering makes, with those that it lets go.
const MAX_MADE: usize = 512 << 20;
/// Values that calls and loops hold at once, which are copies beside those that are made.
const MAX_HELD: usize = 4 * MAX_ITEMS;
/// Calls within calls, as far as the rendering's stack holds them.
const MAX_CALLS: u32 = 300;
/// Rough bytes of a value beside its text.
pub const VALUE: usize = 48;
/// Bytes of text that are one step.
const TEXT_STEP: usize = 64;
/// Steps between two looks at the clock and the client: a fraction of a millisecond.
const LOOK: u64 = 4096;

/// How long one rendering may last.
#[derive(Clone, Copy)]
pub struct Limits {
    pub steps: u64,
    pub time: Duration,
}

pub struct Budget {
    max_steps: u64,
    steps: Cell<u64>,
    /// The steps at which the clock and the client are looked at next.
    look: Cell<u64>,
    made: Cell<usize>,
    /// Values that calls and loops hold which have not ended.
    held: Cell<usize>,
    calls: Cell<u32>,
    deadline: Instant,
    /// Cancelled when nobody waits for the text any more.
    client: CancellationToken,
}

impl Budget {
    pub fn new(limits: Limits, client: &CancellationToken) -> Self {
        Self {
            max_steps: limits.steps,
            steps: Cell::new(0),
            look: Cell::new(0),
            made: Cell::new(0),
            held: Cell::new(0),
            calls: Cell::new(0),
            deadline: Instant::now() + limits.time,
            client: client.clone(),
        }
    }

    pub fn step(&self, steps: usize) -> Result<(), Error> {
        let total = self.steps.get().saturating_add(steps as u64);
        self.steps.set(total);
        if total >= self.look.get() { self.look(total) } else { Ok(()) }
    }

    #[cold]
    fn look(&self, total: u64) -> Result<(), Error> {
        if total > self.max_steps {
            return Err(Error::new(ErrorKind::Fuel, "too many steps"));
        }
        if self.client.is_cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, "nobody waits for it"));
        }
        if Instant::now() > self.deadline {
            return Err(Error::new(ErrorKind::Time, "it lasts too long"));
        }
        self.look.set((total + LOOK).min(self.max_steps + 1));
        Ok(())
    }

    /// Counts a visit of each byte.
    pub fn read(&self, text: &str) -> Result<(), Error> {
        self.step(text.len() / TEXT_STEP)
    }

    /// Counts bytes of new values.
    pub fn make(&self, bytes: usize) -> Result<(), Error> {
        self.step(bytes / TEXT_STEP)?;
        let made = self.made.get().saturating_add(bytes);
        self.made.set(made);
        if made > MAX_MADE {
            return Err(Error::new(ErrorKind::Size, "the values are too many or too long"));
        }
        Ok(())
    }

    /// Counts a new container.
    pub fn make_container(&self, items: usize, nesting: u32) -> Result<(), Error> {
        if nesting > MAX_NESTING {
            return Err(Error::new(ErrorKind::Other, "a value is nested too deeply"));
        }
        if items > MAX_ITEMS {
            return Err(too_long());
        }
        self.make((items + 1) * VALUE)
    }

    /// Appends a text that is being made, as long as it is no longer than any may be.
    pub fn push(&self, out: &mut String, text: &str) -> Result<(), Error> {
        self.fits(out.len().saturating_add(text.len()))?;
        self.read(text)?;
        out.push_str(text);
        Ok(())
    }

    /// A text repeated, as long as it is no longer than any may be.
    pub fn repeat(&self, text: &str, times: usize) -> Result<String, Error> {
        let bytes = text.len().saturating_mul(times);
        self.fits(bytes)?;
        self.step(bytes / TEXT_STEP)?;
        Ok(text.repeat(times))
    }

    /// Whether a text of so many bytes may be made.
    pub fn fits(&self, bytes: usize) -> Result<(), Error> {
        if bytes > MAX_TEXT { Err(too_long()) } else { Ok(()) }
    }

    /// Runs a call or a loop that holds a copy of so many values until it ends. Others may run within it, with
    /// copies of their own.
    pub fn holding<T>(&self, values: usize, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let before = self.held.get();
        let held = before.saturating_add(values);
        if held > MAX_HELD {
            return Err(Error::new(ErrorKind::Size, "its calls and loops hold too many values"));
        }
        self.held.set(held);
        let result = run();
        self.held.set(before);
        result
    }

    pub fn deeper<T>(&self, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.calls.set(self.calls.get() + 1);
        let result = if self.calls.get() > MAX_CALLS {
            Err(Error::new(ErrorKind::Depth, "it calls itself too deeply"))
        } else {
            run()
        };
        self.calls.set(self.calls.get() - 1);
        result
    }
}

pub fn too_long() -> Error {
    Error::new(ErrorKind::Size, "a value is too long")
}

pub fn too_large() -> Error {
    Error::new(ErrorKind::Other, "a number is too large")
}
