package cpukit;

import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/** Those without a token get a line a second between them: nobody else shall fill the logs. */
final class Strangers {
    private static final long EVERY_NANOS = TimeUnit.SECONDS.toNanos(1);

    private static final AtomicLong next = new AtomicLong(System.nanoTime());
    private static final AtomicInteger unlogged = new AtomicInteger();

    private Strangers() {}

    /** Whether this one has a line; counted when not. */
    static boolean mayLog() {
        long now = System.nanoTime();
        long due = next.get();
        if (now - due >= 0 && next.compareAndSet(due, now + EVERY_NANOS)) {
            return true;
        }
        unlogged.incrementAndGet();
        return false;
    }

    /** How many had none since the last line. */
    static int takeUnlogged() {
        return unlogged.getAndSet(0);
    }
}
