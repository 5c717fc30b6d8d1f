//! The pause image: the process that holds a pod's namespaces.
//!
//! Every runtime starts a sandbox from an image, and a machine without
//! internet has none. So Ferry brings its own: a static program of a few
//! instructions, written here as machine code because a user's machine has no
//! compiler, wrapped into an image of one file.
//!
//! The program blocks SIGINT, SIGTERM and SIGCHLD and waits for them one by
//! one. On SIGCHLD it reaps (it is process 1 of pods that share their process
//! namespace); on the others it exits. Blocking instead of handling matters:
//! the kernel drops signals to process 1 that it neither handles nor blocks.
//!
//! ```text
//!         rt_sigprocmask(SIG_BLOCK, set)
//! wait:   signal = rt_sigtimedwait(set)
//!         if signal == SIGCHLD goto reap
//!         if signal < 0        goto wait      (interrupted)
//!         exit_group(0)
//! reap:   pid = wait4(-1, WNOHANG)
//!         if pid > 0           goto reap
//!         goto wait
//! set:    1 << (signal - 1) for each of the three
//! ```

use super::oci::{self, File, Image, Process};

const SIGINT: u32 = 2;
const SIGTERM: u32 = 15;
const SIGCHLD: u32 = 17;
const SIGNALS: u64 = 1 << (SIGINT - 1) | 1 << (SIGTERM - 1) | 1 << (SIGCHLD - 1);

/// Where programs are loaded by long custom.
const BASE: u64 = 0x40_0000;
const ELF_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;

/// The pause image under the name the runtime looks for, or `None` on an
/// architecture whose instructions are not written here.
pub fn image(name: &str) -> Option<Result<Image, oci::Error>> {
    let program = program(std::env::consts::ARCH)?;
    let files = [File { path: "pause", mode: 0o755, data: &program }];
    let process = Process { entrypoint: &["/pause"], user: "65535:65535", ..Process::default() };
    Some(oci::assemble(name, &files, &[], &process))
}

/// The whole executable.
pub fn program(architecture: &str) -> Option<Vec<u8>> {
    let (machine, code) = match architecture {
        "x86_64" => (62u16, x86_64()),
        "aarch64" => (183u16, aarch64()),
        _ => return None,
    };
    let size = (ELF_HEADER + PROGRAM_HEADER + code.len()) as u64;
    let mut elf = Vec::with_capacity(size as usize);
    elf.extend([0x7f, b'E', b'L', b'F', 2, 1, 1, 0]);
    elf.extend([0; 8]);
    elf.extend(2u16.to_le_bytes()); // executable
    elf.extend(machine.to_le_bytes());
    elf.extend(1u32.to_le_bytes());
    elf.extend((BASE + (ELF_HEADER + PROGRAM_HEADER) as u64).to_le_bytes()); // entry
    elf.extend((ELF_HEADER as u64).to_le_bytes()); // program headers
    elf.extend(0u64.to_le_bytes()); // no sections
    elf.extend(0u32.to_le_bytes());
    for half in [ELF_HEADER as u16, PROGRAM_HEADER as u16, 1, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    elf.extend(1u32.to_le_bytes()); // load
    elf.extend(5u32.to_le_bytes()); // read and execute
    for word in [0, BASE, BASE, size, size, 0x1000] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(code);
    Some(elf)
}

fn x86_64() -> Vec<u8> {
    let mut code: Vec<u8> = Vec::new();
    code.extend([0xb8, 14, 0, 0, 0]); // mov eax, rt_sigprocmask
    code.extend([0x31, 0xff]); // xor edi, edi: SIG_BLOCK
    let first_set = code.len() + 3;
    code.extend([0x48, 0x8d, 0x35, 0, 0, 0, 0]); // lea rsi, [set]
    code.extend([0x31, 0xd2]); // xor edx, edx
    code.extend([0x41, 0xba, 8, 0, 0, 0]); // mov r10d, 8
    code.extend([0x0f, 0x05]); // syscall
    let wait = code.len();
    code.extend([0xb8, 128, 0, 0, 0]); // mov eax, rt_sigtimedwait
    let second_set = code.len() + 3;
    code.extend([0x48, 0x8d, 0x3d, 0, 0, 0, 0]); // lea rdi, [set]
    code.extend([0x31, 0xf6]); // xor esi, esi
    code.extend([0x31, 0xd2]); // xor edx, edx
    code.extend([0x41, 0xba, 8, 0, 0, 0]); // mov r10d, 8
    code.extend([0x0f, 0x05]); // syscall
    code.extend([0x83, 0xf8, SIGCHLD as u8]); // cmp eax, SIGCHLD
    let to_reap = code.len() + 1;
    code.extend([0x74, 0]); // je reap
    code.extend([0x85, 0xc0]); // test eax, eax
    let interrupted = code.len() + 1;
    code.extend([0x78, 0]); // js wait
    code.extend([0x31, 0xff]); // xor edi, edi
    code.extend([0xb8, 231, 0, 0, 0]); // mov eax, exit_group
    code.extend([0x0f, 0x05]); // syscall
    let reap = code.len();
    code.extend([0xb8, 61, 0, 0, 0]); // mov eax, wait4
    code.extend([0x48, 0xc7, 0xc7, 0xff, 0xff, 0xff, 0xff]); // mov rdi, -1
    code.extend([0x31, 0xf6]); // xor esi, esi
    code.extend([0xba, 1, 0, 0, 0]); // mov edx, WNOHANG
    code.extend([0x45, 0x31, 0xd2]); // xor r10d, r10d
    code.extend([0x0f, 0x05]); // syscall
    code.extend([0x85, 0xc0]); // test eax, eax
    let again = code.len() + 1;
    code.extend([0x7f, 0]); // jg reap
    let back = code.len() + 1;
    code.extend([0xeb, 0]); // jmp wait
    let set = code.len();
    code.extend(SIGNALS.to_le_bytes());

    // distances count from the end of the instruction
    for at in [first_set, second_set] {
        let distance = (set - (at + 4)) as u32;
        code[at..at + 4].copy_from_slice(&distance.to_le_bytes());
    }
    for (at, target) in [(to_reap, reap), (interrupted, wait), (again, reap), (back, wait)] {
        code[at] = (target as i64 - (at as i64 + 1)) as i8 as u8;
    }
    code
}

fn aarch64() -> Vec<u8> {
    const SVC: u32 = 0xd400_0001;
    let load = |register: u32, value: u32| 0xd280_0000 | value << 5 | register;
    let address = |register: u32, words: i32| {
        let bytes = words * 4;
        0x1000_0000 | ((bytes as u32) & 3) << 29 | ((bytes >> 2) as u32 & 0x7_ffff) << 5 | register
    };
    let branch_if = |condition: u32, words: i32| 0x5400_0000 | (words as u32 & 0x7_ffff) << 5 | condition;
    const EQUAL: u32 = 0;
    const GREATER: u32 = 12;
    // word positions of the labels; the table below is laid out by them
    const WAIT: i32 = 6;
    const REAP: i32 = 18;
    const SET: i32 = 28;
    let words: [u32; SET as usize] = [
        load(8, 135), // rt_sigprocmask
        load(0, 0),   // SIG_BLOCK
        address(1, SET - 2),
        load(2, 0),
        load(3, 8),
        SVC,
        load(8, 137), // wait: rt_sigtimedwait
        address(0, SET - 7),
        load(1, 0),
        load(2, 0),
        load(3, 8),
        SVC,
        0x7100_001f | SIGCHLD << 10, // cmp w0, SIGCHLD
        branch_if(EQUAL, REAP - 13), // b.eq reap
        0x3700_0000 | 31 << 19 | (((WAIT - 14) as u32) & 0x3fff) << 5, // tbnz w0, #31, wait
        load(0, 0),
        load(8, 94), // exit_group
        SVC,
        load(8, 260), // reap: wait4
        0x9280_0000,  // mov x0, -1
        load(1, 0),
        load(2, 1), // WNOHANG
        load(3, 0),
        SVC,
        0x7100_001f,                                     // cmp w0, 0
        branch_if(GREATER, REAP - 25),                   // b.gt reap
        0x1400_0000 | ((WAIT - 26) as u32) & 0x3ff_ffff, // b wait
        0xd503_201f,                                     // nop: the set is aligned to eight bytes
    ];
    let mut code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    code.extend(SIGNALS.to_le_bytes());
    code
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn the_program_waits_reaps_nothing_and_exits_on_sigterm() {
        let Some(program) = program(std::env::consts::ARCH) else {
            ferry_skip::unsupported("no pause program for this architecture");
            return;
        };
        assert!(program.len() < 300, "{} bytes", program.len());
        let directory = tempfile::tempdir().expect("a directory can be made");
        let path = directory.path().join("pause");
        std::fs::write(&path, program).expect("a file can be written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
            .expect("it can be made executable");
        let mut child = std::process::Command::new(&path).spawn().expect("the kernel loads it");
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        // it takes signals once it waits for them
        let wait_call = if cfg!(target_arch = "x86_64") { "128 " } else { "137 " };
        let current_call = format!("/proc/{}/syscall", child.id());
        let waits = (0..500).any(|_| {
            let there = std::fs::read_to_string(&current_call).is_ok_and(|call| call.starts_with(wait_call));
            if !there {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            there
        });
        if !waits {
            child.kill().expect("it can be killed");
        }
        assert!(waits, "it waits for its signals");
        for signal in [nix::sys::signal::Signal::SIGCHLD, nix::sys::signal::Signal::SIGTERM] {
            assert!(child.try_wait().expect("it can be waited for").is_none(), "it runs until told");
            nix::sys::signal::kill(pid, signal).expect("it can be signalled");
        }
        let status = child.wait().expect("it can be waited for");
        assert_eq!((status.code(), status.signal()), (Some(0), None));
    }

    #[test]
    fn every_architecture_has_a_well_formed_header() {
        for (architecture, machine) in [("x86_64", 62), ("aarch64", 183)] {
            let program = program(architecture).expect("its instructions are written");
            assert_eq!(&program[..4], b"\x7fELF");
            assert_eq!(u16::from_le_bytes([program[18], program[19]]), machine);
        }
        assert!(program("mips").is_none());
    }
}
