//! Encryption of a value with one key: upstream's three schemes, in its byte format.

use aes_gcm::AesGcm;
use aes_gcm::aead::array::Array;
use aes_gcm::aead::consts::{U12, U16};
use aes_gcm::aead::{Aead, AeadCore, KeyInit, Payload};
use aes_gcm::aes::{Aes128, Aes192, Aes256};
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{
    BlockCipherDecrypt, BlockCipherEncrypt, BlockModeDecrypt, BlockModeEncrypt, BlockSizeUser, InnerIvInit,
};
use crypto_secretbox::XSalsa20Poly1305;

/// How values are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    AesCbc,
    AesGcm,
    Secretbox,
}

impl Scheme {
    /// What stands in front of a value: the scheme and the key.
    pub(super) fn mark(self, key: &str) -> String {
        let scheme = match self {
            Scheme::AesCbc => "aescbc",
            Scheme::AesGcm => "aesgcm",
            Scheme::Secretbox => "secretbox",
        };
        format!("k8s:enc:{scheme}:v1:{key}:")
    }

    /// How many bytes a key may have.
    pub fn key_sizes(self) -> &'static [usize] {
        match self {
            Scheme::AesCbc | Scheme::AesGcm => &[16, 24, 32],
            Scheme::Secretbox => &[32],
        }
    }

    /// `None` where the key's size is not one of [`key_sizes`](Self::key_sizes).
    pub(super) fn cipher(self, key: &[u8]) -> Option<Box<dyn Cipher>> {
        fn made<C: Cipher + 'static>(cipher: C) -> Option<Box<dyn Cipher>> {
            Some(Box::new(cipher))
        }
        match (self, key.len()) {
            (Scheme::AesCbc, 16) => made(Cbc(Aes128::new_from_slice(key).ok()?)),
            (Scheme::AesCbc, 24) => made(Cbc(Aes192::new_from_slice(key).ok()?)),
            (Scheme::AesCbc, 32) => made(Cbc(Aes256::new_from_slice(key).ok()?)),
            (Scheme::AesGcm, 16) => made(Gcm(AesGcm::<Aes128, U12>::new_from_slice(key).ok()?)),
            (Scheme::AesGcm, 24) => made(Gcm(AesGcm::<Aes192, U12>::new_from_slice(key).ok()?)),
            (Scheme::AesGcm, 32) => made(Gcm(AesGcm::<Aes256, U12>::new_from_slice(key).ok()?)),
            (Scheme::Secretbox, 32) => {
                use crypto_secretbox::KeyInit;
                made(Secretbox(XSalsa20Poly1305::new_from_slice(key).ok()?))
            }
            _ => None,
        }
    }
}

/// `path` is where the value lies. A scheme that can binds the value to it, so that nobody makes one secret of another
/// by copying bytes.
pub(super) trait Cipher: Send + Sync {
    fn encrypt(&self, path: &str, plain: &[u8]) -> Vec<u8>;

    /// `None` for what this key did not write at this path.
    fn decrypt(&self, path: &str, stored: &[u8]) -> Option<Vec<u8>>;
}

/// The initialization vector, then whole blocks. It hides, but does not notice who changes it.
struct Cbc<C>(C);

impl<C> Cipher for Cbc<C>
where
    C: BlockCipherEncrypt + BlockCipherDecrypt + BlockSizeUser<BlockSize = U16> + Clone + Send + Sync,
{
    fn encrypt(&self, _path: &str, plain: &[u8]) -> Vec<u8> {
        let start: [u8; 16] = rand::random();
        let mode = cbc::Encryptor::inner_iv_init(self.0.clone(), &Array::from(start));
        [&start[..], &mode.encrypt_padded_vec::<Pkcs7>(plain)].concat()
    }

    fn decrypt(&self, _path: &str, stored: &[u8]) -> Option<Vec<u8>> {
        let (start, blocks) = stored.split_first_chunk::<16>()?;
        let mode = cbc::Decryptor::inner_iv_init(self.0.clone(), &Array::from(*start));
        mode.decrypt_padded_vec::<Pkcs7>(blocks).ok()
    }
}

/// The nonce, the value, and a tag over it and its path.
struct Gcm<A>(A);

impl<A: Aead + AeadCore<NonceSize = U12> + Send + Sync> Cipher for Gcm<A> {
    fn encrypt(&self, path: &str, plain: &[u8]) -> Vec<u8> {
        let nonce: [u8; 12] = rand::random();
        let sealed = self.0.encrypt(&Array::from(nonce), Payload { msg: plain, aad: path.as_bytes() });
        [&nonce[..], &sealed.expect("a value is far below the 64 GB that the scheme can do")].concat()
    }

    fn decrypt(&self, path: &str, stored: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = stored.split_first_chunk::<12>()?;
        self.0.decrypt(&Array::from(*nonce), Payload { msg: sealed, aad: path.as_bytes() }).ok()
    }
}

/// NaCl's: the nonce, a tag, the value.
struct Secretbox(XSalsa20Poly1305);

impl Cipher for Secretbox {
    fn encrypt(&self, _path: &str, plain: &[u8]) -> Vec<u8> {
        use crypto_secretbox::aead::Aead;
        let nonce: [u8; 24] = rand::random();
        let sealed =
            self.0.encrypt(&nonce.into(), plain).expect("a value is far below what the scheme can do");
        [&nonce[..], &sealed].concat()
    }

    fn decrypt(&self, _path: &str, stored: &[u8]) -> Option<Vec<u8>> {
        use crypto_secretbox::aead::Aead;
        let (nonce, sealed) = stored.split_first_chunk::<24>()?;
        self.0.decrypt(&(*nonce).into(), sealed).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Scheme; 3] = [Scheme::AesCbc, Scheme::AesGcm, Scheme::Secretbox];

    #[test]
    fn ciphers_round_trip_and_never_repeat_a_ciphertext() {
        for scheme in ALL {
            for size in scheme.key_sizes() {
                let cipher = scheme.cipher(&vec![7; *size]).expect("a key of this size");
                for plain in [&b""[..], b"x", b"sixteen bytes!!!", &[9; 5_000]] {
                    let stored = cipher.encrypt("/registry/secrets/a/b", plain);
                    assert_ne!(stored, cipher.encrypt("/registry/secrets/a/b", plain), "{scheme:?}");
                    assert_eq!(cipher.decrypt("/registry/secrets/a/b", &stored).as_deref(), Some(plain));
                }
            }
            assert!(scheme.cipher(&[7; 15]).is_none());
        }
    }

    #[test]
    fn another_key_and_cut_or_foreign_bytes_are_refused() {
        for scheme in ALL {
            let cipher = scheme.cipher(&[7; 32]).expect("a key");
            let stored = cipher.encrypt("/a", b"plain text of more than one block");
            let other = scheme.cipher(&[8; 32]).expect("a key");
            assert_ne!(
                other.decrypt("/a", &stored).as_deref(),
                Some(&b"plain text of more than one block"[..])
            );
            for length in [0, 5, 16, 24, stored.len() - 1] {
                assert!(cipher.decrypt("/a", &stored[..length]).is_none(), "{scheme:?} cut to {length}");
            }
        }
    }

    /// A secret moved to another name is no secret of that name.
    #[test]
    fn gcm_binds_a_value_to_its_path() {
        let cipher = Scheme::AesGcm.cipher(&[7; 32]).expect("a key");
        let stored = cipher.encrypt("/registry/secrets/a/b", b"x");
        assert!(cipher.decrypt("/registry/secrets/a/c", &stored).is_none());
    }

    /// The test vector of NaCl's own `secretbox.c`: its tag comes first.
    #[test]
    fn secretbox_is_nacls() {
        let key = hex("1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389");
        let nonce = hex("69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37");
        let plain = hex(concat!(
            "be075fc53c81f2d5cf141316ebeb0c7b5228c52a4c62cbd44b66849b64244ffc",
            "e5ecbaaf33bd751a1ac728d45e6c61296cdc3c01233561f41db66cce314adb31",
            "0e3be8250c46f06dceea3a7fa1348057e2f6556ad6b1318a024a838f21af1fde",
            "048977eb48f59ffd4924ca1c60902e52f0a089bc76897040e082f93776384864",
            "5e0705",
        ));
        let sealed = hex(concat!(
            "f3ffc7703f9400e52a7dfb4b3d3305d98e993b9f48681273c29650ba32fc76ce",
            "48332ea7164d96a4476fb8c531a1186ac0dfc17c98dce87b4da7f011ec48c972",
            "71d2c20f9b928fe2270d6fb863d51738b48eeee314a7cc8ab932164548e526ae",
            "90224368517acfeabd6bb3732bc0e9da99832b61ca01b6de56244a9e88d5f9b3",
            "7973f622a43d14a6599b1f654cb45a74e355a5",
        ));
        let cipher = Scheme::Secretbox.cipher(&key).expect("a key");
        assert_eq!(cipher.decrypt("", &[nonce, sealed].concat()), Some(plain));
    }

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len() / 2)
            .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hexadecimal"))
            .collect()
    }
}
