//! StorageClass: how volumes are made, fixed for as long as it exists.

use serde::de::IgnoredAny;

use crate::columns::Column;
use crate::strategy::{Rules, Typed};

pub static STRATEGY: Typed<IgnoredAny, StorageClassRules> = Typed::new(StorageClassRules);

pub struct StorageClassRules;

impl Rules<IgnoredAny> for StorageClassRules {
    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        super::tables::storage::STORAGE_CLASS
    }
}
