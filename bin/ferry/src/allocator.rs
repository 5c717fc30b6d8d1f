//! The global allocator, mimalloc. Objects are trees of small allocations, and each write creates and drops several of
//! them; mimalloc reduced the CPU of writes by a fifth (docs/performance.md).
//!
//! Its own crate asks for an alignment with every piece, which takes twice the instructions; nearly all pieces are
//! content with what any block has.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;

use libmimalloc_sys as mi;

pub struct Mimalloc;

/// What every block is aligned to that is at least as large.
const NATURAL: usize = 16;

fn is_natural(size: usize, align: usize) -> bool {
    align <= NATURAL && align <= size
}

// SAFETY: mimalloc gives blocks that are aligned and as large as asked for, or null; `mi_free` and the reallocations take
// blocks of either way of asking. `realloc` asks by the new size, which is what the block is then used for.
unsafe impl GlobalAlloc for Mimalloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: mimalloc takes any size, and a layout's alignment is a power of two.
        unsafe {
            match is_natural(size, align) {
                true => mi::mi_malloc(size).cast(),
                false => mi::mi_malloc_aligned(size, align).cast(),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: as in `alloc`.
        unsafe {
            match is_natural(size, align) {
                true => mi::mi_zalloc(size).cast(),
                false => mi::mi_zalloc_aligned(size, align).cast(),
            }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller hands back a block that this allocator gave out.
        unsafe { mi::mi_free(block.cast::<c_void>()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let block = block.cast::<c_void>();
        // SAFETY: as in `dealloc`, and the new size is not zero.
        unsafe {
            match is_natural(size, layout.align()) {
                true => mi::mi_realloc(block, size).cast(),
                false => mi::mi_realloc_aligned(block, size, layout.align()).cast(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the shortcut rests on.
    #[test]
    fn blocks_are_aligned_whatever_their_size() {
        for align in [1, 2, 4, 8, 16, 32, 4096] {
            for size in (1..600).chain([4096, 65_536, 1 << 20]) {
                let layout = Layout::from_size_align(size, align).expect("a power of two");
                // SAFETY: blocks are used within their size and freed once.
                unsafe {
                    let block = Mimalloc.alloc(layout);
                    assert_eq!(block.addr() % align, 0, "{layout:?}");
                    block.write_bytes(7, size);
                    let larger = Mimalloc.realloc(block, layout, size * 2);
                    assert_eq!(larger.addr() % align, 0, "{layout:?} made larger");
                    assert_eq!((*larger, *larger.add(size - 1)), (7, 7));
                    Mimalloc.dealloc(larger, Layout::from_size_align(size * 2, align).expect("as before"));
                    let zeroed = Mimalloc.alloc_zeroed(layout);
                    assert_eq!((zeroed.addr() % align, *zeroed), (0, 0));
                    Mimalloc.dealloc(zeroed, layout);
                }
            }
        }
    }
}
