//! What `--env` logs: versions and devices, for a bug report. Nothing of it leaves the machine.

use std::path::Path;
use std::time::Duration;

use tokio::process::Command;
use tracing::info;

/// Without importing torch, which would take as long as the start itself.
const VERSIONS: &str = "import sys, importlib.metadata as m; \
    print('Python', sys.version.split()[0], *(f'{d.name} {d.version}' for d in m.distributions() \
    if d.name in ('torch', 'numpy', 'safetensors', 'grpcio', 'huggingface_hub', 'huggingface-hub')), sep=', ')";

pub async fn environment(python: &Path) {
    let built = if cfg!(debug_assertions) { "debug" } else { "optimised" };
    info!("{} {}, {built} build, {}", std::env::consts::OS, std::env::consts::ARCH, python.display());
    match output(Command::new(python).args(["-c", VERSIONS])).await {
        Some(text) => info!("{text}"),
        None => info!("the versions of Python's packages cannot be read"),
    }
    if let Ok(text) = std::fs::read_to_string("/proc/cpuinfo") {
        let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        let cores = std::thread::available_parallelism().map_or(0, |n| n.get());
        info!("{}, {cores} usable cores", name.unwrap_or("an unknown processor"));
    }
    const GPUS: [&str; 2] = ["--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"];
    match output(Command::new("nvidia-smi").args(GPUS)).await {
        Some(text) => text.lines().for_each(|line| info!("GPU: {line}")),
        None => info!("no NVIDIA GPU: nvidia-smi does not answer"),
    }
}

/// How many GPUs the driver shows; 0 without one.
pub async fn gpus() -> u32 {
    let list = output(Command::new("nvidia-smi").arg("--list-gpus")).await;
    list.map_or(0, |list| list.lines().filter(|line| !line.trim().is_empty()).count() as u32)
}

async fn output(command: &mut Command) -> Option<String> {
    let finished = tokio::time::timeout(Duration::from_secs(10), command.kill_on_drop(true).output());
    let output = finished.await.ok()?.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
