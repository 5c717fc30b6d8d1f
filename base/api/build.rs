//! Compresses the descriptions of the API's types: they are read when somebody asks for OpenAPI, and seldom.

use std::io::Write;
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    const TABLE: &str = "table/descriptions.txt";
    println!("cargo::rerun-if-changed={TABLE}");
    println!("cargo::rerun-if-changed=build.rs");
    let out = std::env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&std::fs::read(TABLE)?)?;
    std::fs::write(out.join("descriptions.deflate"), encoder.finish()?)
}
