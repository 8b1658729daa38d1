package cpukit;

import java.time.Duration;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Answers what was accepted and refuses what comes after.
 *
 * <p>TorchServe's shutdown hook closes all connections at once (ServerGroups.shutdown), answered or not.
 */
final class Drain {
    private static final Logger logger = LoggerFactory.getLogger(Drain.class);
    private static final long POLL_MS = 25;
    /** The last answers are still on their way out. */
    private static final long FLUSH_MS = 500;

    private Drain() {}

    static void run(Gatehouse gatehouse, Duration limit) {
        gatehouse.drain();
        logger.info("draining: {} requests wait or are in a batch", gatehouse.countUnanswered());
        long end = System.nanoTime() + limit.toNanos();
        try {
            while (gatehouse.countUnanswered() > 0 && System.nanoTime() < end) {
                Thread.sleep(POLL_MS);
            }
            Thread.sleep(FLUSH_MS);
        } catch (InterruptedException problem) {
            logger.error("cannot drain: requests may be cut off", problem);
        }
        logger.info("drained: {} requests left unanswered", gatehouse.countUnanswered());
    }
}
