//! Compiles the grammars that requests ask for, on threads on which tenants take turns; each once, however many ask for it meanwhile.
//! What a compiler is, `constraint` says.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::Notify;

use crate::blocking::{BlockingPool, Turn, Undone};
use crate::constraint::{ContentDigest, Grammar, GrammarCompiler, GrammarError, GrammarRequest};
use crate::generation::event::GenerationFailure;
use crate::generation::metrics;
use crate::tenant::Tenant;

/// So long a grammar waits for its turn to be compiled.
const WAIT: Duration = Duration::from_secs(5);
const BUSY: &str = "too many grammars are being compiled; try again";

type Compiled = Result<Arc<dyn Grammar>, GrammarError>;
type Compilation = BoxFuture<'static, Result<Compiled, Undone>>;

pub struct Grammars {
    /// Once it is made; or why there is none, for the client.
    compiler: Shared<BoxFuture<'static, Result<Arc<dyn GrammarCompiler>, String>>>,
    pool: BlockingPool,
    /// Whoever asks for one of them waits for it; when nobody waits any more, it is cancelled.
    under_way: Mutex<HashMap<ContentDigest, WeakShared<Compilation>>>,
    /// One more is under way.
    begins: Notify,
}

impl Grammars {
    /// `threads` of each class of sizes compile at once.
    pub fn new(
        compiler: impl Future<Output = Result<Arc<dyn GrammarCompiler>, String>> + Send + 'static,
        threads: u32,
    ) -> Self {
        Self {
            compiler: compiler.boxed().shared(),
            pool: BlockingPool::new(threads),
            under_way: Mutex::default(),
            begins: Notify::new(),
        }
    }

    /// Compiles a grammar, or finds it compiled, which waits for nobody.
    pub async fn compile(
        &self,
        tenant: Tenant,
        asked: GrammarRequest,
    ) -> Result<Arc<dyn Grammar>, GenerationFailure> {
        let compiler = self.compiler.clone().await.map_err(GrammarError::Invalid)?;
        let began = Instant::now();
        let compiled = match compiler.find(&asked) {
            Some(found) => Ok(found),
            None => match self.begun(compiler, tenant, asked).await {
                Ok(compilation) => compilation.await?,
                Err(Undone::Late) => Err(GrammarError::Busy(BUSY.into())),
                Err(undone) => return Err(undone.into()),
            },
        };
        metrics::grammar(began.elapsed(), compiled.is_ok());
        Ok(compiled?)
    }

    /// The grammar's compilation, once it is the tenant's turn to begin it, or another request has begun it. To wait for another one's
    /// turn would be to wait in its tenant's line.
    async fn begun(
        &self,
        compiler: Arc<dyn GrammarCompiler>,
        tenant: Tenant,
        asked: GrammarRequest,
    ) -> Result<Shared<Compilation>, Undone> {
        let mut turn = pin!(self.pool.turn_within(WAIT, tenant, asked.bytes()));
        loop {
            // Before the look, so that what begins after it is noticed.
            let another_begins = self.begins.notified();
            let under_way = self.under_way.lock().expect(NO_PANIC).get(&asked.digest()).cloned();
            if let Some(compilation) = under_way.and_then(|other| other.upgrade()) {
                return Ok(compilation);
            }
            tokio::select! {
                turn = &mut turn => return Ok(self.begin(turn?, compiler, asked)),
                () = another_begins => {}
            }
        }
    }

    /// Unless another request has begun it.
    fn begin(
        &self,
        turn: Turn,
        compiler: Arc<dyn GrammarCompiler>,
        asked: GrammarRequest,
    ) -> Shared<Compilation> {
        let digest = asked.digest();
        let mut under_way = self.under_way.lock().expect(NO_PANIC);
        if let Some(compilation) = under_way.get(&digest).and_then(WeakShared::upgrade) {
            return compilation;
        }
        let work = turn.run(move |cancelled: &_| compiler.compile(asked, cancelled));
        let compilation = work.boxed().shared();
        under_way.retain(|_, other| other.upgrade().is_some());
        under_way.extend(compilation.downgrade().map(|weak| (digest, weak)));
        self.begins.notify_waiters();
        compilation
    }
}

const NO_PANIC: &str = "nothing panics while it holds this lock";

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::future::join_all;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::constraint::{GrammarSource, Matcher};

    #[derive(Debug)]
    struct Anything;

    impl Grammar for Anything {
        fn matcher(&self) -> Box<dyn Matcher> {
            unreachable!("nothing is generated")
        }
    }

    /// The first so many compilations that begin may end. Those that are cancelled end, too. What is compiled is kept, as by a
    /// real one: whoever has its turn when all others have their answer begins none.
    #[derive(Debug, Default)]
    struct Held {
        compiled: Mutex<Vec<ContentDigest>>,
        may_end: AtomicU32,
        begun: AtomicU32,
        cancelled: AtomicU32,
    }

    impl GrammarCompiler for Held {
        fn find(&self, _: &GrammarRequest) -> Option<Arc<dyn Grammar>> {
            None
        }

        fn compile(&self, asked: GrammarRequest, cancelled: &CancellationToken) -> Compiled {
            if self.compiled.lock().expect(NO_PANIC).contains(&asked.digest()) {
                return Ok(Arc::new(Anything));
            }
            let number = self.begun.fetch_add(1, Ordering::SeqCst);
            while number >= self.may_end.load(Ordering::SeqCst) {
                if cancelled.is_cancelled() {
                    self.cancelled.fetch_add(1, Ordering::SeqCst);
                    return Err(GrammarError::Invalid("cancelled".into()));
                }
                std::thread::yield_now();
            }
            self.compiled.lock().expect(NO_PANIC).push(asked.digest());
            Ok(Arc::new(Anything))
        }
    }

    /// With one thread, so there is no turn for two.
    fn held() -> (Arc<Held>, Grammars) {
        let compiler = Arc::new(Held::default());
        let made: Arc<dyn GrammarCompiler> = compiler.clone();
        (compiler, Grammars::new(async { Ok(made) }, 1))
    }

    type Asking<'a> = Pin<Box<dyn Future<Output = bool> + 'a>>;

    /// A request for a grammar that waits for it; each is another tenant's.
    fn ask(grammars: &Grammars, tenant: u32, content: u8) -> Asking<'_> {
        let asked = GrammarRequest::new(GrammarSource::JsonObject, [content; 32], 1);
        let compiled = grammars.compile(Tenant::Key(tenant), asked);
        let mut asking: Asking = Box::pin(async move { compiled.await.is_ok() });
        assert!(asking.as_mut().now_or_never().is_none());
        asking
    }

    async fn all_are_compiled(asking: Vec<Asking<'_>>) {
        let all = tokio::time::timeout(Duration::from_secs(30), join_all(asking)).await;
        assert!(all.expect("in time").into_iter().all(|is_compiled| is_compiled));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_grammar_is_compiled_once_and_whoever_asks_for_it_meanwhile_waits_for_that() {
        let (compiler, grammars) = held();
        let mut first: Vec<_> = (0..3).map(|tenant| ask(&grammars, tenant, 1)).collect();
        // Theirs has not begun.
        let second = (3..6).map(|tenant| ask(&grammars, tenant, 2)).collect();
        first.extend((6..9).map(|tenant| ask(&grammars, tenant, 1)));
        compiler.may_end.store(1, Ordering::SeqCst);
        all_are_compiled(first).await;
        compiler.may_end.store(2, Ordering::SeqCst);
        all_are_compiled(second).await;
        assert_eq!(compiler.begun.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_grammar_is_given_up_when_nobody_waits_for_it_any_more() {
        let (compiler, grammars) = held();
        let mut asking: Vec<_> = (0..3).map(|tenant| ask(&grammars, tenant, 1)).collect();
        // The one that has begun it leaves.
        drop(asking.remove(0));
        compiler.may_end.store(1, Ordering::SeqCst);
        all_are_compiled(asking).await;
        assert_eq!(compiler.cancelled.load(Ordering::SeqCst), 0);

        let asking: Vec<_> = (0..3).map(|tenant| ask(&grammars, tenant, 2)).collect();
        drop(asking);
        while compiler.cancelled.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        // Who comes then does not wait for that one.
        let again = ask(&grammars, 0, 2);
        compiler.may_end.store(3, Ordering::SeqCst);
        all_are_compiled(vec![again]).await;
    }
}
