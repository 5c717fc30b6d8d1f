//! Custom resources through the API of a real server: definitions come and go, their objects behave as objects of
//! built-in kinds do.

mod control_plane;
mod definitions;
mod deletion;
mod objects;
mod published;
mod reads;
mod server;
mod versions;
mod widgets;
