package cpukit;

import io.netty.buffer.ByteBuf;
import java.util.Arrays;

/**
 * One body as it comes, in one array of just its size: TorchServe's NettyUtils.getBytes then takes the array itself,
 * while netty's aggregator keeps every received buffer (4 KiB for a byte that came alone) and is copied besides.
 */
final class Body {
    private static final int FIRST_BYTES = 64 << 10;

    private byte[] bytes;
    private int size;

    /** `length` in bytes; -1 when it is not known. */
    Body(long length) {
        bytes = new byte[length < 0 ? FIRST_BYTES : (int) length];
    }

    /** What a body of this length takes at once. */
    static long atOnce(long length) {
        return length < 0 ? FIRST_BYTES : length;
    }

    /** Bytes that must be added to its room before so many more fit: as much again at least. */
    int lacks(int more) {
        return size + more <= bytes.length ? 0 : Math.max(more, bytes.length);
    }

    void grow(int more) {
        bytes = Arrays.copyOf(bytes, bytes.length + more);
    }

    int size() {
        return size;
    }

    void add(ByteBuf part) {
        int length = part.readableBytes();
        part.readBytes(bytes, size, length);
        size += length;
    }

    byte[] whole() {
        return size == bytes.length ? bytes : Arrays.copyOf(bytes, size);
    }
}
