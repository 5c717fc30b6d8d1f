//! Builds the web server of `ferry demo` (`web/main.rs`), which the program carries: with the same compiler, for the
//! same target, static, since its image holds no other file.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=web/main.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    fold_equal_functions(&variable("TARGET"), &variable("OPT_LEVEL"));
    link_at_fixed_address(&std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default());
    let directory = PathBuf::from(variable("OUT_DIR"));
    let program = directory.join("web");
    let mut command = Command::new(variable("RUSTC"));
    command.args(["--edition", "2024", "--crate-name", "web", "--target", &variable("TARGET")]);
    for option in
        ["opt-level=z", "panic=abort", "strip=symbols", "codegen-units=1", "target-feature=+crt-static"]
    {
        command.args(["-C", option]);
    }
    if let Ok(linker) = std::env::var("RUSTC_LINKER") {
        command.args(["-C", &format!("linker={linker}")]);
    }
    command.arg("--remap-path-prefix").arg(format!("{}=ferry", variable("CARGO_MANIFEST_DIR")));
    command.arg("-o").arg(&program).arg("web/main.rs");
    let output = command.output().expect("the compiler runs");
    if !output.status.success() {
        // Some hosts have no static C library. All else works without it.
        let said = String::from_utf8_lossy(&output.stderr).replace('\n', " ");
        println!("cargo::warning=ferry demo will need a registry, its own web server is not built: {said}");
        std::fs::write(&program, []).expect("the output directory can be written");
    }
}

/// Generic code is often the same machine code for several types: the linker keeps one of them. rustc's own linker can do
/// it, and links for this target (GNU's cannot). Not in builds that shall be soon.
fn fold_equal_functions(target: &str, level: &str) {
    if target == "x86_64-unknown-linux-gnu" && matches!(level, "s" | "z") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}

/// A program that can be loaded anywhere has 190,000 addresses to be set at each start, on a thousand pages that are its own
/// from then on: 7 ms and 4 MB for each process. Libraries, stacks and heaps stay where the kernel puts them, at random.
fn link_at_fixed_address(features: &str) {
    println!("cargo::rustc-link-arg-bins=-no-pie");
    if features.split(',').any(|feature| feature == "crt-static") {
        // In the place of `-static-pie`, which rustc says before and the other word takes back.
        println!("cargo::rustc-link-arg-bins=-static");
    }
}
