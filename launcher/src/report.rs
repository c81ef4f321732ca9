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
    list.map_or(0, |list| count(&list))
}

/// Of the lines that `nvidia-smi --list-gpus` prints: one for each GPU, and an indented one for each slice (MIG) of it. A process
/// is shown one slice, and no other GPU beside it.
fn count(list: &str) -> u32 {
    if list.lines().any(|line| line.trim_start().starts_with("MIG ")) {
        return 1;
    }
    list.lines().filter(|line| line.starts_with("GPU ")).count() as u32
}

async fn output(command: &mut Command) -> Option<String> {
    let finished = tokio::time::timeout(Duration::from_secs(10), command.kill_on_drop(true).output());
    let output = finished.await.ok()?.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_a_gpu_are_no_gpus() {
        let gpu = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)\n";
        let slice = "  MIG 1g.5gb      Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)\n";
        let other = gpu.replace("GPU 0", "GPU 1");
        for (list, gpus) in [
            (String::new(), 0),
            (gpu.to_owned(), 1),
            ([gpu, &other].concat(), 2),
            ([gpu, slice].concat(), 1),
            ([gpu, slice, slice, &other, slice].concat(), 1),
            ("No devices found.".into(), 0),
        ] {
            assert_eq!(count(&list), gpus, "{list}");
        }
    }
}
