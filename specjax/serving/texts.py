"""The text of an answer while its ids come, see `decoding.texts`."""

from specjax.decoding.texts import Text as Text
