//! Over how many processes the model is spread, and how those find each other: what the flags say, else one for
//! each device that the environment shows, as TGI counts them. Called by `main`.

use crate::environment::VisibleDevices;
use crate::flags::WorkerArgs;

/// Where TGI's workers met.
const MASTER_ADDR: &str = "localhost";
const MASTER_PORT: u16 = 29500;

/// How the ranks of a group find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// By a file in the folder of their sockets.
    Folder,
    /// At this `HOST:PORT`, where rank 0 listens.
    Address(String),
}

impl Rendezvous {
    pub fn of(args: &WorkerArgs) -> Self {
        if args.master_addr.is_none() && args.master_port.is_none() {
            return Rendezvous::Folder;
        }
        let host = args.master_addr.as_deref().unwrap_or(MASTER_ADDR);
        let port = args.master_port.unwrap_or(MASTER_PORT);
        // An IPv6 address has colons of its own.
        let host =
            if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.into() };
        Rendezvous::Address(format!("{host}:{port}"))
    }
}

/// How many shards a stage has, and where the number came from if no flag gave it: each visible device is one shard of
/// one stage. `all` counts the machine's GPUs and is asked only if need be. The error is one line that names the
/// flag.
pub async fn count(
    args: &WorkerArgs,
    visible: &VisibleDevices,
    all: impl Future<Output = u32>,
) -> Result<(u32, Option<&'static str>), String> {
    if let Some(number) = args.num_shard {
        return Ok((number, None));
    }
    let on_one = args.device.as_deref().is_some_and(|device| device != "cuda");
    if args.sharded == Some(false) || (on_one && args.sharded.is_none()) {
        return Ok((1, None));
    }
    let (name, devices) = match visible {
        _ if on_one => ("--device", 1),
        VisibleDevices::Unsaid => ("the environment", 1),
        VisibleDevices::Named { variable, devices } => (*variable, *devices),
        VisibleDevices::All { variable } => (*variable, all.await),
    };
    match (args.sharded, devices) {
        (Some(true), 0 | 1) => Err(format!(
            "--sharded true takes a shard for each visible device, and {name} shows {devices}: give --num-shard"
        )),
        (_, 0 | 1) => Ok((1, None)),
        _ => Ok(((devices / args.pipeline_parallel).max(1), Some(name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(num_shard: Option<u32>, sharded: Option<bool>, device: Option<&str>) -> WorkerArgs {
        WorkerArgs {
            dtype: None,
            quantize: None,
            quantize_head: false,
            kv_cache_dtype: None,
            packed_cache: None,
            packed_cache_dir: None,
            model_impl: None,
            device: device.map(str::to_owned),
            num_shard,
            pipeline_parallel: 1,
            sharded,
            master_addr: None,
            master_port: None,
            deterministic: false,
            worker_threads: None,
            load_timeout: 300,
            python: None,
        }
    }

    #[tokio::test]
    async fn flags_go_before_the_environment_and_without_either_there_is_one_shard() {
        let two = VisibleDevices::Named { variable: "CUDA_VISIBLE_DEVICES", devices: 2 };
        let none = VisibleDevices::Named { variable: "CUDA_VISIBLE_DEVICES", devices: 0 };
        let all = VisibleDevices::All { variable: "NVIDIA_VISIBLE_DEVICES" };
        for (args, visible, expected) in [
            (args(None, None, None), &VisibleDevices::Unsaid, Some(1)),
            (args(Some(3), None, None), &two, Some(3)),
            (args(Some(1), None, None), &two, Some(1)),
            (args(Some(3), Some(true), None), &VisibleDevices::Unsaid, Some(3)),
            (args(None, Some(false), None), &two, Some(1)),
            (args(None, None, None), &two, Some(2)),
            (args(None, Some(true), None), &two, Some(2)),
            (args(None, Some(true), None), &all, Some(8)),
            (args(None, None, Some("cuda")), &all, Some(8)),
            (args(None, None, Some("cpu")), &all, Some(1)),
            (args(None, None, Some("cuda:1")), &two, Some(1)),
            (args(None, None, None), &none, Some(1)),
            (args(None, Some(true), None), &none, None),
            (args(None, Some(true), None), &VisibleDevices::Unsaid, None),
            (args(None, Some(true), Some("cpu")), &two, None),
        ] {
            let counted = count(&args, visible, async { 8 }).await;
            assert_eq!(counted.clone().ok().map(|(number, _)| number), expected, "{args:?}");
            assert!(counted.err().is_none_or(|line| line.contains("--num-shard")));
        }
    }

    #[tokio::test]
    async fn stages_share_the_visible_devices() {
        let four = VisibleDevices::Named { variable: "CUDA_VISIBLE_DEVICES", devices: 4 };
        for (stages, expected) in [(1, 4), (2, 2), (4, 1), (8, 1)] {
            let args = WorkerArgs { pipeline_parallel: stages, ..args(None, None, None) };
            assert_eq!(count(&args, &four, async { 0 }).await.unwrap().0, expected);
        }
    }

    #[test]
    fn ranks_meet_in_their_folder_unless_an_address_is_given() {
        let one = args(Some(2), None, None);
        assert_eq!(Rendezvous::of(&one), Rendezvous::Folder);
        for (addr, port, expected) in [
            (Some("10.0.0.1"), None, "10.0.0.1:29500"),
            (None, Some(4000), "localhost:4000"),
            (Some("::1"), Some(4000), "[::1]:4000"),
        ] {
            let args = WorkerArgs { master_addr: addr.map(str::to_owned), master_port: port, ..one.clone() };
            assert_eq!(Rendezvous::of(&args), Rendezvous::Address(expected.into()));
        }
    }
}
