//! Writes the lines of the log on a thread of its own, so that nobody who logs waits for whoever reads them: a pipe may be full, a
//! terminal paused, a disk slow. Lines that find the buffer full are lost, counted (`penstock_log_lines_lost`), and told of when there is
//! room again; so are those that cannot be written, since the reader has gone. Made by `log`, and knows nothing of what a line says.
//!
//! tracing-appender's thread is not used: its buffer is bounded in lines, which may be whole prompts, it drops what a non-blocking pipe does
//! not take, cannot be flushed in a panic, and its last act prints to a standard output that may be full.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use penstock_router::telemetry::metrics;

/// Bytes of lines that wait, some ten thousand lines; as many may be with the thread.
const MOST_WAITING: usize = 4 << 20;
/// Bytes of one write, so that `wait_until_written` sees that somebody takes them.
const PART: usize = 64 << 10;
/// How long `wait_until_written` lasts at most, with a reader that is slow, or lines that go on coming.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// What lines are handed to; clones hand them to the same thread.
#[derive(Clone)]
pub struct LogWriter(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    /// There is something to write.
    filled: Condvar,
    /// A part was written, or given up.
    written: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<u8>,
    /// The thread has lines that it took.
    is_writing: bool,
    /// Written until now.
    parts: u64,
    /// Lines that nobody was told of.
    lost: u64,
}

impl LogWriter {
    /// Writes to a copy of this descriptor. `tell` is called on the thread, when lines were lost and there is room again.
    pub fn start(output: impl AsFd, tell: fn(u64)) -> io::Result<Self> {
        let output = File::from(output.as_fd().try_clone_to_owned()?);
        let shared =
            Arc::new(Shared { queue: Mutex::default(), filled: Condvar::new(), written: Condvar::new() });
        let own = shared.clone();
        // It lasts as long as the process.
        thread::Builder::new().name("log".into()).spawn(move || own.write_to(&output, tell))?;
        Ok(Self(shared))
    }

    /// Waits until all lines are written, but no longer than `patience` for somebody to take some of them.
    pub fn wait_until_written(&self, patience: Duration) {
        let began = Instant::now();
        let mut queue = self.0.lock();
        let (mut parts, mut since) = (queue.parts, began);
        while queue.is_writing || !queue.waiting.is_empty() {
            if queue.parts != parts {
                (parts, since) = (queue.parts, Instant::now());
            }
            let until = (since + patience).min(began + LONGEST_WAIT);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            (queue, _) = self.0.written.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Write for LogWriter {
    /// Takes whole lines, and always: the subscriber has nobody to tell that it did not.
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut queue = self.0.lock();
        // One that is longer than the buffer may have it for itself.
        if !queue.waiting.is_empty() && queue.waiting.len() + lines.len() > MOST_WAITING {
            queue.lose(lines);
        } else {
            let sleeps = queue.waiting.is_empty() && !queue.is_writing;
            queue.waiting.extend_from_slice(lines);
            drop(queue);
            if sleeps {
                self.0.filled.notify_one();
            }
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Queue {
    fn lose(&mut self, lines: &[u8]) {
        let count = lines.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.lost += count;
        metrics::log_lines_lost(count);
    }
}

impl Shared {
    /// Nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread.
    fn write_to(&self, output: &File, tell: fn(u64)) {
        loop {
            let lines = self.next();
            let left = write_all(output, &lines, || {
                self.lock().parts += 1;
                self.written.notify_all();
            });
            let mut queue = self.lock();
            let lost = match left {
                [] => std::mem::take(&mut queue.lost),
                _ => {
                    queue.lose(left);
                    0
                }
            };
            drop(queue);
            if lost > 0 {
                tell(lost);
            }
        }
    }

    fn next(&self) -> Vec<u8> {
        let mut queue = self.lock();
        queue.is_writing = false;
        self.written.notify_all();
        while queue.waiting.is_empty() {
            queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.is_writing = true;
        std::mem::take(&mut queue.waiting)
    }
}

/// Returns what could not be written: nobody reads any more, or the disk is full.
fn write_all<'l>(mut output: &File, lines: &'l [u8], mut on_part: impl FnMut()) -> &'l [u8] {
    let mut left = lines;
    while !left.is_empty() {
        match output.write(&left[..left.len().min(PART)]) {
            Ok(0) => break,
            Ok(count) => {
                left = &left[count..];
                on_part();
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Somebody who has the same pipe or terminal made it non-blocking.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // If this fails, the write says why.
                let _ = poll(&mut [PollFd::new(output.as_fd(), PollFlags::POLLOUT)], PollTimeout::NONE);
            }
            Err(_) => break,
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, PipeReader, Read};
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(100);
    /// What pipes of Linux hold, usually.
    const PIPE: usize = 64 << 10;

    fn piped(tell: fn(u64)) -> (PipeReader, LogWriter) {
        let (reader, writer) = io::pipe().unwrap();
        // Its copy is the only one from here on, so that the pipe ends with the process.
        (reader, LogWriter::start(writer, tell).unwrap())
    }

    fn lost(log: &LogWriter) -> u64 {
        log.0.lock().lost
    }

    #[test]
    fn whoever_logs_does_not_wait_for_a_reader_and_what_is_lost_is_counted_and_told() {
        static TOLD: AtomicU64 = AtomicU64::new(0);
        let (reader, mut log) = piped(|lost| {
            TOLD.fetch_add(lost, Ordering::SeqCst);
        });
        let line = [&[b'x'; 999][..], b"\n"].concat();
        let count = (3 * MOST_WAITING / line.len()) as u64;
        for _ in 0..count {
            log.write_all(&line).unwrap();
        }
        let lost = lost(&log);
        let most_kept = (2 * MOST_WAITING + PIPE) / line.len() + 1;
        assert!((count - most_kept as u64..count).contains(&lost), "{lost} of {count}");
        let began = Instant::now();
        log.wait_until_written(PATIENCE);
        assert!(began.elapsed() < LONGEST_WAIT / 2, "{:?}", began.elapsed());
        // Who reads again gets every other line whole.
        let mut lines = BufReader::new(reader);
        for _ in lost..count {
            let mut read = Vec::new();
            lines.read_until(b'\n', &mut read).unwrap();
            assert_eq!(read, line);
        }
        log.wait_until_written(LONGEST_WAIT);
        assert_eq!(TOLD.load(Ordering::SeqCst), lost);
    }

    #[test]
    fn a_slow_reader_is_waited_for() {
        let (mut reader, mut log) = piped(|_| ());
        log.write_all(&vec![b'\n'; 4 * PIPE]).unwrap();
        let slow = thread::spawn(move || {
            let mut read = [0; PIPE];
            for _ in 0..4 {
                thread::sleep(PATIENCE / 2);
                reader.read_exact(&mut read).unwrap();
            }
            reader
        });
        let began = Instant::now();
        log.wait_until_written(LONGEST_WAIT);
        assert!(began.elapsed() > PATIENCE, "{:?}", began.elapsed());
        assert!(log.0.lock().waiting.is_empty() && !log.0.lock().is_writing);
        drop(slow.join().unwrap());
    }

    #[test]
    fn lines_to_a_reader_that_has_left_are_lost_without_a_word() {
        let (reader, mut log) = piped(|lost| panic!("there is nobody to tell of {lost}"));
        drop(reader);
        for lines in 1..=3 {
            log.write_all(b"line\n").unwrap();
            log.wait_until_written(LONGEST_WAIT);
            assert_eq!(lost(&log), lines);
        }
    }

    #[test]
    fn a_line_longer_than_the_buffer_is_written_and_comes_whole_from_a_non_blocking_pipe() {
        let (mut reader, writer) = io::pipe().unwrap();
        let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
        nix::fcntl::fcntl(&writer, flags).unwrap();
        let mut log = LogWriter::start(writer, |_| ()).unwrap();
        let long = [&vec![b'x'; 2 * MOST_WAITING][..], b"\n"].concat();
        log.write_all(&long).unwrap();
        let mut read = vec![0; long.len()];
        reader.read_exact(&mut read).unwrap();
        assert!(read == long);
        assert_eq!(lost(&log), 0);
    }
}
