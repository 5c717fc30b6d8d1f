//! Connections that carry several streams: exec, attach and port-forward.
//!
//! Towards the runtime it is always SPDY/3.1, which containerd and CRI-O
//! serve. Towards clients it is what they ask for:
//!
//! | client speaks | what happens |
//! | --- | --- |
//! | SPDY/3.1 | bytes are passed through: the runtime speaks the same |
//! | WebSocket, channels | each channel becomes a SPDY stream |
//! | WebSocket, SPDY tunnel | messages are unwrapped, then as SPDY |

pub mod channels;
pub mod port_forward;
pub mod remote_command;
pub mod spdy;
pub mod upgrade;
