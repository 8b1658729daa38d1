package cpukit;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;

/** What all connections share: the bytes that bodies may take together, and how many connections there may be. */
public final class Gatehouse {
    /** Requests up to this size may use the whole budget; larger ones leave an eighth of it to them. */
    static final int SMALL_BYTES = 1 << 20;

    /** What a request costs besides its body: buffers, objects, headers. */
    static final int LEAST_BYTES = 16 << 10;

    private final long bytes;
    private final int connections;
    private final Duration slow;
    /** Bodies on their way, the oldest first, with the time they began. */
    private final Map<Gate, Long> receiving = new LinkedHashMap<>();

    private long taken;
    private int connected;
    private int unanswered;
    private volatile boolean draining;

    /** A body that has come for longer than `slow` makes room when others need it. */
    Gatehouse(long bytes, int connections, Duration slow) {
        this.bytes = bytes;
        this.connections = connections;
        this.slow = slow;
    }

    /** Whether one more connection fits; each true needs a disconnect(). */
    synchronized boolean connect() {
        connected++;
        return connected <= connections;
    }

    synchronized void disconnect() {
        connected--;
    }

    /** Room for a body that begins to come; false when there is none, and then the slowest makes some. */
    synchronized boolean enter(Gate gate, long size) {
        if (!take(gate, size)) {
            return false;
        }
        unanswered++;
        receiving.put(gate, System.nanoTime());
        return true;
    }

    /** More room for a body whose length was not told. */
    synchronized boolean take(Gate gate, long size) {
        long charged = Math.max(size, LEAST_BYTES);
        long limit = size > SMALL_BYTES ? bytes - bytes / 8 : bytes;
        if (taken + charged > limit) {
            evictSlowest();
            return false;
        }
        taken += charged;
        gate.charged += charged;
        return true;
    }

    /** The whole body is there. */
    synchronized void received(Gate gate) {
        receiving.remove(gate);
    }

    /** Answered, or gone. */
    synchronized void leave(Gate gate) {
        if (gate.charged == 0) {
            return;
        }
        receiving.remove(gate);
        taken -= gate.charged;
        gate.charged = 0;
        unanswered--;
    }

    private void evictSlowest() {
        receiving.entrySet().stream()
                .findFirst()
                .filter(oldest -> System.nanoTime() - oldest.getValue() > slow.toNanos())
                .ifPresent(oldest -> oldest.getKey().evict());
    }

    /** From now on every request is refused. */
    void drain() {
        draining = true;
    }

    boolean isDraining() {
        return draining;
    }

    /** Requests that were let in and have no answer yet. */
    synchronized int countUnanswered() {
        return unanswered;
    }
}
