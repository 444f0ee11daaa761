import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.common.TopicPartition;

/** Handles part of a topic and leaves the rest, as the offset map, to whoever comes next. */
final class Handover {
    private static final Duration CLOSE = Duration.ofSeconds(20);

    private final Set<Long> failing;
    /** Offset to the number of successful handler calls. */
    private final ConcurrentSkipListMap<Long, Integer> handled = new ConcurrentSkipListMap<>();
    private final AtomicLong lastChangeNanos = new AtomicLong(Long.MAX_VALUE);

    private Handover(Map<String, String> options) {
        failing = Arrays.stream(options.getOrDefault("fail", "").split(","))
                .filter(text -> !text.isEmpty())
                .map(Long::valueOf)
                .collect(Collectors.toSet());
    }

    /** Options: fail (offsets that always fail), expect (how many offsets must succeed), limit_s. */
    static void untilHandled(Map<String, String> options) throws InterruptedException {
        int expected = Integer.parseInt(options.get("expect"));
        Handover handover = new Handover(options);
        handover.run(options, () -> handover.handled.size() >= expected);
    }

    /** Options: fail, idle_s (stop when nothing was handled for so long since the assignment), limit_s. */
    static void untilIdle(Map<String, String> options) throws InterruptedException {
        double idleSeconds = Double.parseDouble(options.get("idle_s"));
        Handover handover = new Handover(options);
        handover.run(options, () -> handover.idleSeconds() >= idleSeconds);
    }

    private interface Condition {
        boolean holds();
    }

    private void run(Map<String, String> options, Condition over) throws InterruptedException {
        ParallelStreamProcessor<byte[], byte[]> processor = PcRunner.processor(options);
        processor.subscribe(List.of(options.get("topic")), new AssignmentClock());
        processor.poll(context -> handle(context.offset()));
        long limit = System.nanoTime() + Long.parseLong(options.get("limit_s")) * 1_000_000_000L;
        while (!over.holds() && System.nanoTime() < limit) {
            Thread.sleep(10);
        }
        processor.closeDontDrainFirst(CLOSE);
        report(over.holds());
        Runtime.getRuntime().halt(over.holds() ? 0 : 1);
    }

    private void handle(long offset) {
        if (failing.contains(offset)) {
            throw new IllegalStateException("offset " + offset + " always fails");
        }
        handled.merge(offset, 1, Integer::sum);
        lastChangeNanos.set(System.nanoTime());
    }

    private double idleSeconds() {
        long last = lastChangeNanos.get();
        return last == Long.MAX_VALUE ? 0 : (System.nanoTime() - last) / 1e9;
    }

    private void report(boolean complete) {
        long calls = handled.values().stream().mapToInt(Integer::intValue).sum();
        System.out.printf(
                "{\"complete\": %b, \"calls\": %d, \"handled\": %s}%n", complete, calls, handled.keySet());
        System.out.flush();
    }

    private final class AssignmentClock implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            lastChangeNanos.set(System.nanoTime());
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}
    }
}
