"""The segment store protocol: commands, their encoding, and frames on a connection.

`penstock.wire.commands` has the commands, `penstock.wire.codec` turns them into frames and back,
`penstock.wire.framing` cuts received bytes into frames.
"""
