//! What `--record` writes is executed again: by the mock's model, which follows it, and by a worker, whose results are compared.

use std::path::Path;
use std::sync::Arc;

use penstock_proto::record_entry::What;
use penstock_proto::{Message, Prepared, RecordEntry};

use super::harness::{every_forcing, spec};
use super::served::{collect, settings};
use crate::health::Health;
use crate::scheduler::submission::{Priority, SequenceSpec};
use crate::scheduler::{Settings, spawn};
use crate::worker::mock::{Fault, MockConfig, MockSource, Script};
use crate::worker::recording::{RecordReader, Recorder};
use crate::worker::replay::{ReplayError, replay};
use crate::worker::{Endpoint, GiveUp, Group, Loss, PrepareLimits, WorkerSource};

fn config() -> MockConfig {
    MockConfig {
        eos_one_in: 40,
        surprise_one_in: 10,
        pages: 64,
        block_size: 4,
        max_positions: 128,
        ..MockConfig::default()
    }
}

/// Drafts, grammars, preemptions and a lost worker are in it.
async fn record(at: &Path) {
    let config = config();
    let folder = tempfile::tempdir().expect("a folder");
    let script: Script = Box::new(|step| (step.incarnation == 1 && step.number == 12).then_some(Fault::Die));
    let source = Arc::new(MockSource::with_script(config.clone(), folder.path().into(), script));
    let limits = PrepareLimits {
        max_slots: 8,
        max_step_tokens: 48,
        max_sequence_tokens: 0,
        max_cache_tokens: 0,
        memory_fraction: 0.9,
        max_step_drafts: 20,
    };
    let group = Group::start(&*source, |_| Ok(limits)).await.expect("it starts");
    let recorder = Some(Arc::new(Recorder::create(at, 1 << 30).expect("a new file")));
    let settings = Settings { speculate: 4, recorder, ..settings(&config) };
    let health = tokio::sync::watch::Sender::new(Health::Ready);
    let handle = spawn(group, source, settings, health).await;
    let specs = (0..16u32).map(|salt| {
        let prompt: Vec<u32> = (0..10 + salt * 3).map(|at| (at * 7 + salt * 31) % 1000).collect();
        let constraint = if salt % 4 == 0 { every_forcing(5, 20, None, 3) } else { None };
        let mut spec = SequenceSpec { constraint, priority: Priority(salt as i32 % 3), ..spec(&prompt, 60) };
        spec.sampling.repetition_penalty = if salt % 3 == 0 { 1.3 } else { 1.0 };
        spec
    });
    let submitted: Vec<_> = specs.map(|spec| handle.submit(spec).expect("there is room")).collect();
    for submitted in submitted {
        assert!(collect(submitted).await.1.is_ok());
    }
    handle.stop().await;
}

/// Of the record `from`, with one entry changed.
fn change(from: &Path, to: &Path, change: impl Fn(&mut What) -> bool) {
    let mut reader = RecordReader::open(from).expect("it is there");
    let (mut bytes, mut is_changed) = (Vec::new(), false);
    while let Some(mut what) = reader.next_entry().expect("a record") {
        is_changed = is_changed || change(&mut what);
        bytes.extend(RecordEntry { what: Some(what) }.encode_length_delimited_to_vec());
    }
    assert!(is_changed);
    std::fs::write(to, bytes).expect("written");
}

#[tokio::test]
async fn what_was_recorded_is_executed_again_with_the_same_results() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("record");
    record(&at).await;
    let report = replay(&at, None).await.expect("every plan is right");
    assert_eq!((report.runs, report.end.as_deref()), (2, Some("the server has stopped")));
    assert!(report.plans > 40 && report.rows > report.plans, "{report:?}");

    // A worker that computes the same.
    let sockets = [tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder")];
    let workers = MockSource::new(config(), sockets[0].path().into());
    let same = replay(&at, Some(&workers)).await.expect("the results are the same");
    assert_eq!((same.plans, same.tokens, same.largest_difference), (report.plans, report.tokens, 0.0));

    // And one that computes something else: the first difference is named.
    let other = MockSource::new(MockConfig { surprise_one_in: 0, ..config() }, sockets[1].path().into());
    let error = replay(&at, Some(&other)).await.expect_err("it differs");
    let ReplayError::Differs { run: 1, plan: 1.., why } = &error else { panic!("{error}") };
    assert!(why.contains("row") && why.contains("instead of"), "{why}");
}

/// Workers that run already: the same whenever they are asked for, and never replaced.
struct Running(Vec<Endpoint>);

#[async_trait::async_trait]
impl WorkerSource for Running {
    async fn fresh(&self, lost: Option<&Loss>) -> Result<Vec<Endpoint>, GiveUp> {
        match lost {
            None => Ok(self.0.clone()),
            Some(loss) => Err(GiveUp(loss.to_string())),
        }
    }
}

/// A worker that was lost may be replaced by one with more memory, or less: of the one or the other run, what was prepared is less than
/// what its plans leave unused.
#[tokio::test]
async fn runs_with_caches_of_different_sizes_are_executed_on_one_worker() {
    let shrinks: [fn(&mut Prepared); 2] =
        [|prepared| prepared.pages -= 1, |prepared| prepared.max_sequence_tokens -= 1];
    for shrink in shrinks {
        replay_uneven(shrink).await;
    }
}

async fn replay_uneven(shrink: fn(&mut Prepared)) {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("record");
    record(&at).await;
    for (number, first) in [(0, true), (1, false)] {
        let (uneven, socket) = (folder.path().join("uneven"), folder.path().join(format!("worker-{number}")));
        let heads = std::cell::Cell::new(0);
        change(&at, &uneven, |what| {
            let What::Head(head) = what else { return false };
            let is_first = heads.replace(heads.get() + 1) == 0;
            if is_first != first {
                return false;
            }
            shrink(head.prepared.as_mut().expect("it says"));
            true
        });
        std::fs::create_dir(&socket).expect("a new folder");
        let workers = MockSource::new(config(), socket);
        let running = Running(workers.fresh(None).await.expect("it starts"));
        let report = replay(&uneven, Some(&running)).await.expect("the results are the same");
        assert_eq!(report.runs, 2);
    }
}

#[tokio::test]
async fn a_plan_that_is_wrong_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let (at, wrong) = (folder.path().join("record"), folder.path().join("wrong"));
    record(&at).await;
    change(&at, &wrong, |what| match what {
        What::Plan(plan) if plan.number == 9 => {
            plan.positions = plan.positions.iter().map(|byte| byte ^ 1).collect::<Vec<_>>().into();
            true
        }
        _ => false,
    });
    let error = replay(&wrong, None).await.expect_err("its digest is another");
    assert!(matches!(&error, ReplayError::Differs { run: 1, plan: 9, .. }), "{error}");

    change(&at, &wrong, |what| match what {
        What::Head(head) => {
            head.contract ^= 1;
            true
        }
        _ => false,
    });
    let error = replay(&wrong, None).await.expect_err("it is of another contract").to_string();
    assert!(error.contains("another contract"), "{error}");
    std::fs::write(&wrong, "").expect("written");
    let error = replay(&wrong, None).await.expect_err("it is empty").to_string();
    assert!(error.contains("no record"), "{error}");
}
