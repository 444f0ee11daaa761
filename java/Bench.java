import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/** Times one workload, from the first handler call to the last completion. */
final class Bench {
    private static final long KNUTH = 2654435761L;
    private static final long MASK = 0xFFFFFFFFL;

    private final String handler;
    private final long total;
    private final AtomicLong started = new AtomicLong();
    private final AtomicLong finished = new AtomicLong();
    private final CountDownLatch over = new CountDownLatch(1);
    private volatile long firstNanos;
    private volatile long lastNanos;

    private Bench(String handler, long total) {
        this.handler = handler;
        this.total = total;
    }

    /** Options: records (how many to wait for), handler (noop, table, or a number of ms), limit_s. */
    static void run(Map<String, String> options) throws InterruptedException {
        Bench bench = new Bench(options.get("handler"), Long.parseLong(options.get("records")));
        ParallelStreamProcessor<byte[], byte[]> processor = PcRunner.processor(options);
        processor.subscribe(List.of(options.get("topic")));
        processor.poll(context -> bench.handle(context.offset()));
        boolean all = bench.over.await(Long.parseLong(options.get("limit_s")), TimeUnit.SECONDS);
        bench.report(all);
        // Closing a pool of thousands of threads takes long and is not measured.
        Runtime.getRuntime().halt(all ? 0 : 1);
    }

    private void handle(long offset) {
        if (started.getAndIncrement() == 0) {
            firstNanos = System.nanoTime();
        }
        sleep(sleepNanos(offset));
        if (finished.incrementAndGet() == total) {
            lastNanos = System.nanoTime();
            over.countDown();
        }
    }

    /** The same numbers as benchmarks/sleeps.py: 0 to 5 ms, spread evenly, decided by the offset. */
    private long sleepNanos(long offset) {
        return switch (handler) {
            case "noop" -> 0;
            case "table" -> (long) (((offset * KNUTH) & MASK) / (double) (MASK + 1) * 5_000_000);
            default -> (long) (Double.parseDouble(handler) * 1_000_000);
        };
    }

    /** Thread.sleep of Java 17 rounds up to whole milliseconds, which would be unfair to Java. */
    private static void sleep(long nanos) {
        if (nanos <= 0) {
            return;
        }
        long end = System.nanoTime() + nanos;
        for (long left = nanos; left > 0; left = end - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }

    private void report(boolean all) {
        double seconds = all ? (lastNanos - firstNanos) / 1e9 : Double.MAX_VALUE;
        System.out.printf(
                Locale.ROOT,
                "{\"complete\": %b, \"seconds\": %.6f, \"records\": %d, \"records_per_s\": %.1f}%n",
                all, all ? seconds : 0.0, finished.get(), all ? finished.get() / seconds : 0.0);
        System.out.flush();
    }
}
