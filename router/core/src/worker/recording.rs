//! The record of a run (`--record`): what the router sent to the worker that answers plans, and what came back, as
//! `recording.proto` lays it down. Written by a thread of its own, so that a disk never holds up a step; read by `replay`.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use penstock_proto::record_entry::What;
use penstock_proto::{
    CONTRACT, Masks, Message, PrepareRequest, RecordEnd, RecordEntry, RecordHead, StepPlan, StepResult,
};

use super::group::{Group, PrepareLimits};

/// Entries that wait for the disk. With more the record ends: the server goes first.
const WAITING: usize = 4096;

/// Kept for the last entry.
const END: u64 = 512;

/// No entry of a router is so long.
const LONGEST: u64 = 1 << 30;

/// Writes a record. Dropped, it ends it.
pub struct Recorder {
    entries: Option<mpsc::SyncSender<What>>,
    /// Nothing is written any more: the record is full, or could not be written.
    ended: Arc<AtomicBool>,
    writer: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Recorder {
    /// A new file, which its owner alone can read: prompts are in it, as tokens. At most `limit` bytes are written.
    pub fn create(path: &Path, limit: u64) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        Self::over(file, path.display().to_string(), limit)
    }

    fn over(file: impl Write + Send + 'static, name: String, limit: u64) -> io::Result<Self> {
        let (sender, entries) = mpsc::sync_channel(WAITING);
        let ended = Arc::new(AtomicBool::new(false));
        let mut writer = Writer { file: BufWriter::new(file), room: limit.saturating_sub(END) };
        let told = ended.clone();
        let writing = move || {
            let outcome = writer.write_all(&entries, &told);
            told.store(true, Ordering::Relaxed);
            match outcome.and_then(|why| writer.end(&why).map(|()| why)) {
                Ok(why) => tracing::info!("the record {name} ends: {why}"),
                Err(error) => tracing::error!("the record {name} cannot be written: {error}"),
            }
        };
        let writer = std::thread::Builder::new().name("recorder".into()).spawn(writing)?;
        Ok(Self { entries: Some(sender), ended, writer: Some(writer) })
    }

    /// A Run begins.
    pub fn begin(&self, group: &Group) {
        self.write(|| {
            What::Head(RecordHead {
                contract: CONTRACT,
                version: env!("CARGO_PKG_VERSION").into(),
                model: Some(group.description().clone()),
                limits: Some(PrepareRequest::from(group.limits())),
                prepared: Some(group.prepared().clone()),
            })
        });
    }

    pub fn plan(&self, plan: &StepPlan) {
        self.write(|| What::Plan(plan.clone()));
    }

    pub fn masks(&self, masks: &Masks) {
        self.write(|| What::Masks(masks.clone()));
    }

    pub fn result(&self, result: &StepResult) {
        self.write(|| What::Result(result.clone()));
    }

    /// What is large in an entry is shared, not copied.
    fn write(&self, what: impl FnOnce() -> What) {
        if self.ended.load(Ordering::Relaxed) {
            return;
        }
        if let Some(entries) = &self.entries
            && entries.try_send(what()).is_err()
        {
            self.ended.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        drop(self.entries.take());
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

struct Writer<W: Write> {
    file: BufWriter<W>,
    /// Bytes that may still be written, but for the end.
    room: u64,
}

impl<W: Write> Writer<W> {
    /// Returns why it ends.
    fn write_all(&mut self, entries: &mpsc::Receiver<What>, ended: &AtomicBool) -> io::Result<String> {
        loop {
            let next = match entries.try_recv() {
                Err(mpsc::TryRecvError::Empty) if !ended.load(Ordering::Relaxed) => {
                    // So that little is lost when the router is killed.
                    self.file.flush()?;
                    entries.recv().ok()
                }
                next => next.ok(),
            };
            let Some(what) = next else {
                // All that came before the one that found no place is written.
                let why = match ended.load(Ordering::Relaxed) {
                    true => format!("{WAITING} entries waited for the disk, which is too slow"),
                    false => "the server has stopped".into(),
                };
                return Ok(why);
            };
            let entry = RecordEntry { what: Some(what) }.encode_length_delimited_to_vec();
            match self.room.checked_sub(entry.len() as u64) {
                Some(room) => self.room = room,
                None => return Ok("it is as large as --record-limit allows".into()),
            }
            self.file.write_all(&entry)?;
        }
    }

    fn end(&mut self, why: &str) -> io::Result<()> {
        let end = RecordEntry { what: Some(What::End(RecordEnd { why: why.into() })) };
        self.file.write_all(&end.encode_length_delimited_to_vec())?;
        self.file.flush()
    }
}

impl From<&PrepareLimits> for PrepareRequest {
    fn from(limits: &PrepareLimits) -> Self {
        Self {
            max_slots: limits.max_slots,
            max_step_tokens: limits.max_step_tokens,
            max_sequence_tokens: limits.max_sequence_tokens,
            max_cache_tokens: limits.max_cache_tokens,
            memory_fraction: limits.memory_fraction,
            max_step_drafts: limits.max_step_drafts,
        }
    }
}

/// Reads a record, entry by entry.
pub struct RecordReader<R> {
    from: R,
}

impl RecordReader<io::BufReader<File>> {
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { from: io::BufReader::new(File::open(path)?) })
    }
}

impl<R: Read> RecordReader<R> {
    pub fn new(from: R) -> Self {
        Self { from }
    }

    /// The next entry; `None` where the file ends, be it within an entry: its writer was killed.
    pub fn next_entry(&mut self) -> io::Result<Option<What>> {
        let Some(length) = self.length()? else { return Ok(None) };
        if length > LONGEST {
            return Err(no_record());
        }
        let mut entry = Vec::new();
        let read = (&mut self.from).take(length).read_to_end(&mut entry)?;
        if (read as u64) < length {
            return Ok(None);
        }
        let entry = RecordEntry::decode(&entry[..]).map_err(|_| no_record())?;
        entry.what.map(Some).ok_or_else(no_record)
    }

    /// A varint.
    fn length(&mut self) -> io::Result<Option<u64>> {
        let mut length = 0;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            if self.from.read(&mut byte)? == 0 {
                return Ok(None);
            }
            length |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] & 0x80 == 0 {
                return Ok(Some(length));
            }
        }
        Err(no_record())
    }
}

fn no_record() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "this is no record of a router's")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A file that the test can look into.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("nothing panics with it").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn result(number: u64, bytes: usize) -> StepResult {
        StepResult { number, sampled: vec![7; bytes].into(), ..StepResult::default() }
    }

    fn recorded(limit: u64, bytes: usize) -> Vec<u8> {
        let kept = Kept::default();
        let recorder = Recorder::over(kept.clone(), "test".into(), limit).expect("a thread");
        (1..=20).for_each(|number| recorder.result(&result(number, bytes)));
        drop(recorder);
        kept.0.lock().expect("nothing panics with it").clone()
    }

    fn entries(bytes: &[u8]) -> (Vec<u64>, Option<String>) {
        let (mut numbers, mut end) = (Vec::new(), None);
        let mut reader = RecordReader::new(bytes);
        while let Some(what) = reader.next_entry().expect("a record") {
            match what {
                What::Result(result) => numbers.push(result.number),
                What::End(RecordEnd { why }) => end = Some(why),
                other => panic!("{other:?}"),
            }
        }
        (numbers, end)
    }

    #[test]
    fn what_was_recorded_is_read_in_order_up_to_its_end() {
        let (numbers, end) = entries(&recorded(1 << 20, 100));
        assert_eq!(numbers, (1..=20).collect::<Vec<_>>());
        assert_eq!(end.as_deref(), Some("the server has stopped"));
    }

    #[test]
    fn a_record_is_no_larger_than_allowed_and_says_so() {
        let bytes = recorded(2000, 100);
        assert!(bytes.len() <= 2000, "{} bytes", bytes.len());
        let (numbers, end) = entries(&bytes);
        assert!((10..20).contains(&numbers.len()), "{numbers:?}");
        assert!(end.is_some_and(|why| why.contains("--record-limit")));
    }

    #[test]
    fn a_record_that_breaks_off_is_read_as_far_as_it_is_whole() {
        let bytes = recorded(1 << 20, 100);
        let (whole, _) = entries(&bytes[..bytes.len() * 2 / 3]);
        assert!((12..=13).contains(&whole.len()) && whole.is_sorted(), "{whole:?}");
    }

    #[test]
    fn what_is_no_record_is_refused() {
        for bytes in [&b"\x05hello world"[..], &[0xff; 20]] {
            let error = RecordReader::new(bytes).next_entry();
            assert!(error.is_err_and(|error| error.to_string().contains("no record")), "{bytes:?}");
        }
    }
}
