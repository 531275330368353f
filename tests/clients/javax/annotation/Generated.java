package javax.annotation;

/** The annotation of generated classes, which the JDK no longer has since version 11. */
public @interface Generated {
    String[] value();

    String date() default "";

    String comments() default "";
}
