fn main() -> std::process::ExitCode {
    ferry_kubectl::main(std::env::args_os().skip(1))
}
