//! Compiles the worker contract. protox parses it in Rust, so that no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const PROTO: &str = "penstock.proto";
    println!("cargo:rerun-if-changed={PROTO}");
    let descriptors = protox::compile([PROTO], ["."])?;
    let contract = crc32fast::hash(&std::fs::read(PROTO)?);
    println!("cargo:rustc-env=PENSTOCK_CONTRACT={contract}");
    // Columns are `bytes::Bytes`: received ones are slices of the frame, sent ones are not copied again.
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
