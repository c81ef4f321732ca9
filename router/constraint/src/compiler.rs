//! Compiles grammars: within limits, on a bounded number of threads, once for each content.
//!
//! llguidance cannot be interrupted while it builds a lexer, so a grammar is compiled on a thread of its own and the
//! caller waits no longer than the limit. A thread that is still at work then is counted among the compiling ones until
//! it ends, which the limits on sizes see to; its result is dropped. All of them yield (`yields.rs`), and one that takes longer than most
//! grammars do leaves the processors to others.
//!
//! The thread of a grammar that is refused goes on to find the place of what is wrong (`blame.rs`), unless another grammar waits for a
//! thread, and for as long as its caller waits for that.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        mpsc::{RecvTimeoutError, sync_channel},
    },
    time::{Duration, Instant},
};

use crate::{
    blame::{self, Search},
    cache::Cache,
    error::{CompileError, Kind, first_line},
    forced::Tokenize,
    grammar,
    limits::Limits,
    matcher::Grammar,
    source::{Content, Source},
    stop::{Cancel, Stop, cancelled, latest, timed_out},
    vocabulary::{Token, Vocabulary},
    yields::Yields,
};

/// Stack of a compiling thread. The schema's depth, its chains of references and its number of properties are limited
/// so that this is enough; only what is touched becomes memory.
const STACK_BYTES: usize = 256 << 20;
/// Of a thread that is still at work at the first look at it: of a processor that is wanted by others it gets a tenth. Most grammars are
/// compiled in a millisecond, and ninety-nine in a hundred in three.
const LONG_NICE: libc::c_int = 10;
/// Of the time that a grammar may take, this part may be spent on finding the place of what is refused.
const SEARCH: u32 = 10;
/// How often a waiting caller looks whether its request is gone.
const POLL: Duration = Duration::from_millis(5);

/// Sources of up to so many bytes are short, and those of up to so many are of medium length: the classes in which the core's blocking
/// threads take turns. The core calls a grammar's bytes by its class, so both have the same.
const CLASSES: [usize; 2] = [16 << 10, 128 << 10];

/// Counts of the cache, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    pub grammars: usize,
    pub bytes: usize,
    pub hits: u64,
    pub misses: u64,
}

/// Compiles the grammars of clients for one vocabulary.
pub struct Compiler {
    vocabulary: Arc<Vocabulary>,
    limits: Arc<Limits>,
    cache: Mutex<Cache>,
    threads: Arc<Threads>,
}

impl Compiler {
    /// Indexes the vocabulary, which takes a second or so for 256,000 tokens.
    ///
    /// `tokens[id]` is the token; `vocab_size` is the width of the logits, which may be more or fewer; `eos_ids` are all
    /// end-of-sequence ids. Err says why this vocabulary cannot be constrained.
    pub fn new(
        tokens: Vec<Token>,
        vocab_size: usize,
        eos_ids: &[u32],
        limits: Limits,
    ) -> Result<Compiler, String> {
        Compiler::with_tokenizer(tokens, vocab_size, eos_ids, limits, None)
    }

    /// The same; with the model's `tokenize` matchers also know which tokens a grammar forces.
    pub fn with_tokenizer(
        tokens: Vec<Token>,
        vocab_size: usize,
        eos_ids: &[u32],
        limits: Limits,
        tokenize: Option<Tokenize>,
    ) -> Result<Compiler, String> {
        let vocabulary = Vocabulary::new(tokens, vocab_size, eos_ids, &limits, tokenize)?;
        Ok(Compiler {
            vocabulary: Arc::new(vocabulary),
            cache: Mutex::new(Cache::new(limits.cache_bytes)),
            threads: Arc::new(Threads::new(limits.threads)),
            limits: Arc::new(limits),
        })
    }

    /// The grammar, if it is compiled already.
    pub fn find(&self, content: &Content) -> Option<Arc<Grammar>> {
        locked(&self.cache).find(content)
    }

    /// Compiles a grammar, or finds it compiled. Blocks for as long as [`Limits::wait`] and eleven times [`Limits::timeout`]
    /// together, at most; returns soon after `cancel` is set.
    pub fn compile(&self, source: Source, cancel: &Cancel) -> Result<Arc<Grammar>, CompileError> {
        let content = source.content(&self.limits)?;
        if let Some(grammar) = locked(&self.cache).get(&content) {
            return Ok(grammar);
        }
        let place = Threads::enter(&self.threads, content.bytes, self.limits.wait, cancel)?;
        // Another request may have compiled it while this one waited.
        if let Some(grammar) = locked(&self.cache).get(&content) {
            return Ok(grammar);
        }
        let grammar = self.compile_on_thread(source, place, cancel)?;
        locked(&self.cache).insert(content, grammar.clone());
        Ok(grammar)
    }

    pub fn cache_counts(&self) -> CacheCounts {
        let cache = locked(&self.cache);
        CacheCounts { grammars: cache.len(), bytes: cache.bytes(), hits: cache.hits, misses: cache.misses }
    }

    /// Words of 32 tokens that a mask has.
    pub fn mask_words(&self) -> usize {
        self.vocabulary.words
    }

    fn compile_on_thread(
        &self,
        source: Source,
        place: Place,
        cancel: &Cancel,
    ) -> Result<Arc<Grammar>, CompileError> {
        let (sender, told) = sync_channel(2);
        let deadline = latest(self.limits.timeout);
        let vocabulary = self.vocabulary.clone();
        let limits = self.limits.clone();
        let begun = Arc::new(OnceLock::new());
        let (own, own_cancel) = (begun.clone(), cancel.clone());
        let work = move || {
            let _yields = Yields::begin();
            let stop = Stop::begin(own_cancel.clone(), limits.timeout);
            // SAFETY: it has no arguments, and cannot fail.
            let _ = own.set((unsafe { libc::gettid() }, stop.clone()));
            let mut compiled =
                catch_unwind(AssertUnwindSafe(|| grammar::compile(&source, &vocabulary, &limits, &stop)))
                    .unwrap_or_else(|panic| Err(panicked(&*panic)));
            // The caller may have left, here and below.
            if let Err(error) = &mut compiled
                && blame::may_have_place(error, &source)
            {
                let stop = Stop::begin(own_cancel, limits.timeout / SEARCH);
                let _ = sender.send(Told::Refused(error.clone(), stop.clone()));
                let is_over = || place.is_wanted() || stop.check(&limits).is_err();
                let mut search = Search::new(&vocabulary, &limits, &stop, &is_over);
                if let Ok(placed) = catch_unwind(AssertUnwindSafe(|| search.placed(error, &source))) {
                    *error = placed;
                }
            }
            // A long one takes long to drop.
            drop(source);
            let _ = sender.send(Told::Done(compiled.map(Arc::new)));
            drop(place);
        };
        std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES).spawn(work).map_err(
            |cause| CompileError::new(Kind::Busy, format!("no thread to compile the grammar on: {cause}")),
        )?;
        let mut is_long = false;
        let mut refused = None;
        loop {
            match told.recv_timeout(POLL) {
                Ok(Told::Done(compiled)) => return compiled,
                Ok(Told::Refused(error, search)) => refused = Some((error, search)),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some((thread, stop)) = begun.get() {
                        match &refused {
                            Some((error, search)) => search.check(&self.limits).map_err(|_| error.clone())?,
                            None => stop.check(&self.limits)?,
                        }
                        if !is_long {
                            is_long = true;
                            leave_to_others(*thread);
                        }
                    } else if cancel.is_cancelled() {
                        return Err(cancelled());
                    } else if Instant::now() > deadline {
                        return Err(timed_out(&self.limits));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(CompileError::new(
                        Kind::Internal,
                        "the thread that compiled the grammar is gone",
                    ));
                }
            }
        }
    }
}

/// What a grammar's thread tells its caller.
enum Told {
    /// The place is still looked for, until then.
    Refused(CompileError, Stop),
    Done(Result<Arc<Grammar>, CompileError>),
}

/// Lowers the priority of a thread of this process, as Linux has one for each thread. Whoever may not do so goes on without.
fn leave_to_others(thread: libc::pid_t) {
    // SAFETY: it takes numbers only; a thread that has ended meanwhile is an error, and its number is not given to another so soon.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, LONG_NICE) };
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").field("cache", &self.cache_counts()).finish_non_exhaustive()
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> CompileError {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| text.to_string())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default();
    tracing::error!(panic = text, "compiling a grammar panicked");
    CompileError::new(Kind::Internal, format!("the compiler failed on this grammar: {}", first_line(&text)))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the mutexes guard is consistent after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Threads {
    /// How many compile at the same time. Beyond them a class of sizes that has none may have one: what is short does not wait for
    /// what is long.
    most: usize,
    places: Mutex<Places>,
    freed: Condvar,
}

#[derive(Clone, Copy, Default)]
struct Places {
    /// Threads that compile, of each class.
    taken: [usize; CLASSES.len() + 1],
    /// Grammars that wait for one.
    waiting: usize,
}

/// A thread's permission to compile; given back when dropped.
struct Place {
    threads: Arc<Threads>,
    class: usize,
}

impl Threads {
    fn new(most: usize) -> Threads {
        Threads { most: most.max(1), places: Mutex::default(), freed: Condvar::new() }
    }

    fn enter(
        threads: &Arc<Threads>,
        bytes: usize,
        wait: Duration,
        cancel: &Cancel,
    ) -> Result<Place, CompileError> {
        let class = CLASSES.iter().filter(|most| bytes > **most).count();
        let deadline = Instant::now() + wait;
        let mut places = locked(&threads.places);
        places.waiting += 1;
        let entered = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if places.taken[class] == 0 || places.taken.iter().sum::<usize>() < threads.most {
                places.taken[class] += 1;
                break Ok(());
            }
            if cancel.is_cancelled() {
                break Err(cancelled());
            }
            if left.is_zero() {
                break Err(CompileError::new(Kind::Busy, "too many grammars are being compiled; try again"));
            }
            let waited = threads.freed.wait_timeout(places, left.min(POLL));
            places = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        places.waiting -= 1;
        drop(places);
        entered.map(|()| Place { threads: threads.clone(), class })
    }
}

impl Place {
    /// Another grammar waits for a thread.
    fn is_wanted(&self) -> bool {
        locked(&self.threads.places).waiting > 0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        locked(&self.threads.places).taken[self.class] -= 1;
        // Who waits may be of a class that has to wait on.
        self.threads.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: usize = 1;
    const LONG: usize = 1 << 20;

    #[test]
    fn a_place_is_waited_for_and_given_back() {
        let threads = Arc::new(Threads::new(1));
        let enter = |wait| Threads::enter(&threads, SHORT, wait, &Cancel::new());
        let place = enter(Duration::ZERO).unwrap();
        let refused = enter(Duration::from_millis(1)).err().unwrap();
        assert_eq!(refused.kind, Kind::Busy);
        assert!(!place.is_wanted());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| enter(Duration::from_secs(60)).map(drop));
            while !place.is_wanted() {
                std::thread::yield_now();
            }
            drop(place);
            waits.join().unwrap().unwrap();
        });
        assert!(enter(Duration::ZERO).is_ok());
    }

    #[test]
    fn what_is_short_does_not_wait_for_what_is_long() {
        let threads = Arc::new(Threads::new(2));
        let enter = |bytes| Threads::enter(&threads, bytes, Duration::ZERO, &Cancel::new());
        let _long = [enter(LONG).unwrap(), enter(LONG).unwrap()];
        assert!(enter(LONG).is_err());
        let medium = enter(CLASSES[1]).unwrap();
        let short = enter(CLASSES[0]).unwrap();
        // One of each, and no more.
        assert!(enter(CLASSES[1]).is_err() && enter(CLASSES[0]).is_err());
        drop(short);
        assert!(enter(CLASSES[1]).is_err());
        let _short = enter(CLASSES[0]).unwrap();
        drop(medium);
        assert!(enter(CLASSES[0] + 1).is_ok());
    }

    #[test]
    fn a_request_that_is_gone_does_not_wait_for_a_place() {
        let threads = Arc::new(Threads::new(1));
        let _place = Threads::enter(&threads, SHORT, Duration::ZERO, &Cancel::new()).unwrap();
        let cancel = Cancel::new();
        cancel.cancel();
        let refused = Threads::enter(&threads, SHORT, Duration::from_secs(60), &cancel).err().unwrap();
        assert_eq!(refused.kind, Kind::Cancelled);
    }
}
