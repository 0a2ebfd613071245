"""Every way an image file can be odd or bad, with real files."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from semmix.data.decoding import BadImageError, decode_picture, read_picture, read_stored_size


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, rows, depth=8, colour=2, extra=b""):
    """A PNG written by hand: Pillow cannot write huge headers, 16-bit colour or odd chunks."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + data


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(height, width, channels=3):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return pixels.squeeze()


def test_rgb_and_grey_arrive_unchanged():
    colour, grey = noise(5, 7), noise(5, 7, 1)
    np.testing.assert_array_equal(decode_picture(encoded(Image.fromarray(colour))).pixels, colour)
    found = decode_picture(encoded(Image.fromarray(grey))).pixels
    np.testing.assert_array_equal(found, grey[..., None])


def test_one_bit_becomes_black_and_white():
    image = Image.fromarray(np.array([[0, 255]], np.uint8)).convert("1")
    assert decode_picture(encoded(image)).pixels.tolist() == [[[0], [255]]]


def test_sixteen_bit_grey_is_scaled_not_clipped():
    wide = np.array([[0, 128, 129, 257, 32896, 40000, 65535]], np.uint16)
    pixels = decode_picture(encoded(Image.fromarray(wide))).pixels
    assert pixels[..., 0].tolist() == [[0, 0, 1, 1, 128, 156, 255]]
    assert pixels.dtype == np.uint8


def test_sixteen_bit_colour_is_scaled():
    rows = b"\0" + struct.pack(">3H", 0xFFFF, 0x8080, 0x0101)
    assert decode_picture(png(1, 1, rows, depth=16)).pixels.tolist() == [[[255, 128, 1]]]


def test_cmyk_jpeg_becomes_rgb():
    cyan = Image.new("CMYK", (16, 16), (255, 0, 0, 0))
    pixels = decode_picture(encoded(cyan, "JPEG", quality=95)).pixels
    np.testing.assert_allclose(pixels.mean((0, 1)), [0, 255, 255], atol=4)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_pixels_become_white(mode):
    image = Image.new(mode, (2, 1), 0)  # black, but invisible
    image.putpixel((1, 0), tuple([0] * (len(mode) - 1) + [255]))
    pixels = decode_picture(encoded(image)).pixels
    assert pixels.shape[2] == (3 if mode == "RGBA" else 1)
    assert (pixels[0, 0] == 255).all()
    assert (pixels[0, 1] == 0).all()


@pytest.mark.parametrize("transparency", [0, b"\x00\xff"])
def test_palette_with_transparency(transparency):
    image = Image.new("P", (2, 1))
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.putpixel((1, 0), 1)
    found = decode_picture(encoded(image, transparency=transparency))
    assert found.pixels.tolist() == [[[255, 255, 255], [200, 100, 50]]]
    assert found.warnings == []


def test_exif_rotation_is_applied():
    upright = np.zeros((8, 16, 3), np.uint8)
    upright[:, :8] = 255  # the left half is white
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise for display
    stored = Image.fromarray(np.rot90(upright))
    data = encoded(stored, "JPEG", quality=100, subsampling=0, exif=exif)
    pixels = decode_picture(data).pixels
    assert pixels.shape == (8, 16, 3)
    assert pixels[:, :7].min() > 240
    assert pixels[:, 9:].max() < 15


def test_size_scales_the_short_side_and_crops_the_middle():
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 20:40] = 255
    pixels = decode_picture(encoded(Image.fromarray(wide)), size=10).pixels
    assert pixels.shape == (10, 10, 3)
    assert pixels[:, 2:8].min() == 255


def test_a_large_jpeg_scaled_down_keeps_its_colours():
    big = Image.new("RGB", (800, 600), (200, 50, 100))
    pixels = decode_picture(encoded(big, "JPEG", quality=95), size=16).pixels
    assert pixels.shape == (16, 16, 3)
    np.testing.assert_allclose(pixels.mean((0, 1)), [200, 50, 100], atol=3)


def test_a_jpeg_is_decoded_at_twice_the_size_and_then_scaled():
    data = encoded(Image.fromarray(noise(150, 200)), "JPEG")
    draft = Image.open(io.BytesIO(data))
    draft.draft(None, (32, 32))
    assert draft.size == (50, 38)
    expected = ImageOps.fit(draft, (16, 16), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(decode_picture(data, size=16).pixels, expected)


def test_a_phones_mpo_is_a_still_picture():
    first, second = Image.fromarray(noise(16, 16)), Image.fromarray(255 - noise(16, 16))
    data = encoded(first, "MPO", save_all=True, append_images=[second], quality=95)
    assert decode_picture(data).pixels.shape == (16, 16, 3)


def check_bad(data, kind, detail=""):
    with pytest.raises(BadImageError) as caught:
        decode_picture(data)
    assert caught.value.kind == kind
    assert detail in caught.value.detail


def animation(kind):
    frames = [Image.fromarray(noise(8, 8, 1) ^ k) for k in (0, 85)]
    return encoded(frames[0], kind, save_all=True, append_images=frames[1:])


@pytest.mark.parametrize("kind", ["WEBP", "PNG"])
def test_animations_are_named(kind):
    check_bad(animation(kind), "animated", "2 frames")


def test_of_an_animated_gif_the_first_picture_is_read():
    found = decode_picture(animation("GIF"))
    np.testing.assert_array_equal(found.pixels[..., 0], noise(8, 8, 1))
    assert found.warnings == ["animated: its first picture is read"]
    still = decode_picture(encoded(Image.fromarray(noise(8, 8, 1)), "GIF"))
    np.testing.assert_array_equal(still.pixels, found.pixels)
    assert still.warnings == []


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1), ("1", 1), ("P", 3)])
def test_bitmaps_are_read(mode, channels, tmp_path):
    image = Image.fromarray(noise(5, 7)).convert(mode)
    (tmp_path / "a.bmp").write_bytes(encoded(image, "BMP"))
    expected = np.asarray(image.convert("RGB" if channels == 3 else "L")).reshape(5, 7, channels)
    np.testing.assert_array_equal(read_picture(tmp_path / "a.bmp").pixels, expected)
    assert read_stored_size(tmp_path / "a.bmp") == (7, 5)


def test_what_a_gif_lets_shine_through_is_white():
    image = Image.new("P", (2, 1))
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.putpixel((1, 0), 1)
    found = decode_picture(encoded(image, "GIF", transparency=0))
    assert found.pixels.tolist() == [[[255, 255, 255], [200, 100, 50]]]


def test_empty_file():
    check_bad(b"", "empty", "0 bytes")


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_truncated_file(kind):
    data = encoded(Image.fromarray(noise(64, 64)), kind)
    check_bad(data[: len(data) // 2], "truncated")


def test_truncated_webp_is_not_read():
    data = encoded(Image.fromarray(noise(64, 64)), "WEBP", lossless=True)
    check_bad(data[: len(data) // 2], "unreadable")


@pytest.mark.parametrize("data", [b"not an image", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF"])
def test_unreadable_file(data):
    check_bad(data, "unreadable")


@pytest.mark.parametrize("kind", ["ICO", "TIFF", "PPM"])
def test_other_kinds_of_images_are_not_read(kind, tmp_path):
    data = encoded(Image.fromarray(noise(8, 8)), kind)
    check_bad(data, "unreadable", "not a PNG")
    (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(BadImageError, match="unreadable"):
        read_stored_size(tmp_path / "a.png")


def test_damaged_png_body_is_unreadable():
    data = bytearray(encoded(Image.fromarray(noise(64, 64))))
    data[33:60] = bytes(27)
    check_bad(bytes(data), "unreadable")


@pytest.mark.parametrize("side", [9_100, 9_500, 100_000])  # below, between and above Pillow's own
def test_a_huge_header_is_refused_before_decoding(side):
    check_bad(png(side, side, b""), "too large")


def test_a_warning_is_kept_with_the_pixels():
    no_frames = chunk(b"acTL", struct.pack(">II", 0, 0))
    found = decode_picture(png(1, 1, b"\0abc", extra=no_frames))
    assert found.pixels.tolist() == [[[97, 98, 99]]]
    assert any("APNG" in warning for warning in found.warnings)


def test_read_picture_names_what_is_not_a_file(tmp_path):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(BadImageError, match="not a regular file"):
        read_picture(tmp_path / "folder.png")
    with pytest.raises(BadImageError, match="No such file"):
        read_picture(tmp_path / "missing.png")


@pytest.mark.parametrize("read", [read_picture, read_stored_size])
def test_a_pipe_is_not_waited_for_and_an_impossible_name_is_no_file(tmp_path, read):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(BadImageError, match="not a regular file"):
        read(tmp_path / "pipe.png")
    with pytest.raises(BadImageError, match="null"):
        read(tmp_path / "a\0.png")


def test_a_huge_file_is_not_even_opened(tmp_path):
    path = tmp_path / "sparse.png"
    with open(path, "wb") as file:
        file.truncate(2**30)
    with pytest.raises(BadImageError, match="too large: 1024 MiB"):
        read_picture(path)
