//! The providers of one resource, in order: the first encrypts, all of them decrypt. To replace a key, add the new one at
//! the end, move it to the front, and remove the old one when no value uses it.

use bytes::Bytes;

use super::cipher::{Cipher, Scheme};

/// Every encrypted value begins with this, whichever scheme and key it has.
const ENCRYPTED: &[u8] = b"k8s:enc:";

#[derive(Default)]
pub struct Providers(Vec<Provider>);

enum Provider {
    /// As it is.
    Identity,
    Key {
        mark: String,
        cipher: Box<dyn Cipher>,
    },
}

/// A value that was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Opened {
    pub plain: Bytes,
    /// It would be written in another way today.
    pub outdated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key of {size} bytes, where one of {expected:?} is expected")]
pub struct BadKeySize {
    pub size: usize,
    pub expected: &'static [usize],
}

impl Providers {
    pub fn then_identity(&mut self) {
        self.0.push(Provider::Identity);
    }

    pub fn then_key(&mut self, scheme: Scheme, name: &str, key: &[u8]) -> Result<(), BadKeySize> {
        let bad = BadKeySize { size: key.len(), expected: scheme.key_sizes() };
        let cipher = scheme.cipher(key).ok_or(bad)?;
        self.0.push(Provider::Key { mark: scheme.mark(name), cipher });
        Ok(())
    }

    pub(super) fn seal(&self, path: &str, plain: Bytes) -> Bytes {
        match self.0.first() {
            Some(Provider::Key { mark, cipher }) => {
                [mark.as_bytes(), &cipher.encrypt(path, &plain)].concat().into()
            }
            Some(Provider::Identity) | None => plain,
        }
    }

    /// `None` where no provider can read it.
    pub(super) fn open(&self, path: &str, stored: &Bytes) -> Option<Opened> {
        self.0.iter().enumerate().find_map(|(place, provider)| {
            let plain = match provider {
                Provider::Identity => (!stored.starts_with(ENCRYPTED)).then(|| stored.clone()),
                Provider::Key { mark, cipher } => {
                    let sealed = stored.strip_prefix(mark.as_bytes())?;
                    cipher.decrypt(path, sealed).map(Bytes::from)
                }
            };
            Some(Opened { plain: plain?, outdated: place > 0 })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn providers(names: &[&str]) -> Providers {
        let mut providers = Providers::default();
        for name in names {
            match name.split_once(' ') {
                None => providers.then_identity(),
                Some((scheme, key)) => {
                    let scheme = match scheme {
                        "cbc" => Scheme::AesCbc,
                        "gcm" => Scheme::AesGcm,
                        _ => Scheme::Secretbox,
                    };
                    let secret = [key.as_bytes()[0]; 32];
                    providers.then_key(scheme, key, &secret).expect("a key of the right size");
                }
            }
        }
        providers
    }

    #[test]
    fn the_first_writes_and_all_of_them_read() {
        fn check(written: &[&str], read: &[&str], outdated: Option<bool>) {
            let stored = providers(written).seal("/p", Bytes::from_static(b"plain"));
            let opened = providers(read).open("/p", &stored);
            let expected = outdated.map(|outdated| Opened { plain: "plain".into(), outdated });
            assert_eq!(opened, expected, "{written:?} read with {read:?}");
        }
        check(&["identity"], &["identity"], Some(false));
        check(&["identity"], &["cbc one", "identity"], Some(true));
        check(&["identity"], &["cbc one"], None);
        check(&["cbc one"], &["cbc one", "identity"], Some(false));
        check(&["cbc one"], &["cbc two", "cbc one"], Some(true));
        check(&["cbc one"], &["identity", "cbc one"], Some(true));
        check(&["cbc one"], &["gcm one", "secretbox one", "identity"], None);
        check(&["gcm one"], &["secretbox x", "gcm one"], Some(true));
        check(&["secretbox one"], &["secretbox one", "gcm x"], Some(false));
    }

    #[test]
    fn a_value_says_how_it_was_written() {
        let stored = providers(&["cbc one"]).seal("/p", Bytes::from_static(b"plain"));
        assert!(stored.starts_with(b"k8s:enc:aescbc:v1:one:"));
        let stored = providers(&["gcm two", "identity"]).seal("/p", Bytes::from_static(b"plain"));
        assert!(stored.starts_with(b"k8s:enc:aesgcm:v1:two:"));
        let stored = providers(&["secretbox k"]).seal("/p", Bytes::from_static(b"plain"));
        assert!(stored.starts_with(b"k8s:enc:secretbox:v1:k:"));
    }
}
