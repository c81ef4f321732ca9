//! Compiles the worker contract. protox parses it in Rust, so that no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const PROTO: &str = "penstock.proto";
    // No part of the contract: no worker reads it.
    const RECORDING: &str = "recording.proto";
    for file in [PROTO, RECORDING] {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile([PROTO, RECORDING], ["."])?;
    let contract = crc32fast::hash(&std::fs::read(PROTO)?);
    println!("cargo:rustc-env=PENSTOCK_CONTRACT={contract}");
    // Columns are `bytes::Bytes`: received ones are slices of the frame, sent ones are not copied again.
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
